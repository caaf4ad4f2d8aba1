// fp8: a row is the float32 sum of squares of its decoded values and then, for each 32 elements, an fp16 scale and 32 codes.
// bf16_rope_fp8_body: ROPE bfloat16 elements stand in the place of the sum. Four lanes share a block, an octet each.

#define E4M3_MANTISSA 3

FN uint fp8_head_bytes(uint rope) {
  return rope > 0 ? 2 * rope : 4;
}

struct Fp8Scale {
  uint bits;
  float scale;
  float inverse;
};

// The scale as stored. Where it is stored as zero, the block becomes zeros.
template <int MANTISSA>
FN Fp8Scale fp8_scale(float largest) {
  Fp8Scale chosen;
  chosen.bits = float_to_half(quotient(largest, MANTISSA == E4M3_MANTISSA ? 240.0f : 224.0f));
  chosen.scale = half_to_float(chosen.bits);
  chosen.inverse = chosen.scale > 0.0f ? quotient(1.0f, chosen.scale) : 0.0f;
  return chosen;
}

// Two codes of the octet, the first in the low byte.
template <int MANTISSA>
FN uint fp8_pair(Octet values, uint i, float inverse) {
  const float first = mul(values.at[i], inverse);
  const float second = mul(values.at[i + 1], inverse);
  return MANTISSA == E4M3_MANTISSA ? floats_to_e4m3s(first, second) : floats_to_e5m2s(first, second);
}

template <int MANTISSA>
FN Octet fp8_values(const LOCAL uint* pairs, float scale) {
  Octet values;
  UNROLL for (uint i = 0; i < 4; ++i) {
    const uint halves = MANTISSA == E4M3_MANTISSA ? e4m3s_to_halves(pairs[i]) : e5m2s_to_halves(pairs[i]);
    values.at[2 * i] = mul(half_to_float(halves & 0xffffu), scale);
    values.at[2 * i + 1] = mul(half_to_float(halves >> 16), scale);
  }
  return values;
}
