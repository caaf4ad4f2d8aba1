// turbo4, turbo3, turbo2: a row is its unit, a float32 power of two, and then, for each 32 elements, an fp16 scale and the codes
// of the rotated block. Four lanes share a block, an octet each. TURBO_LEVELS and TURBO_RATIO_UNIT come from
// kernels/codebooks.py.
//
// Lane i keeps level i (and the midpoint above it), so that looking a level up is an exchange between lanes.

FN float turbo_level(uint i) {
  constexpr int levels[] = {TURBO_LEVELS};
  return float(levels[i]) * 0.00390625f;
}

// The power of two at or below the row's largest magnitude; 0 below 2**-80.
FN float turbo_unit(float largest) {
  const uint bits = float_to_bits(largest);
  return bits_to_float(bits < 0x17800000u ? 0u : bits & INFINITE);
}

// The coefficient of largest magnitude, with its sign.
FN float turbo_end(Octet turned) {
  const float high = most_over<4>(most_of(turned));
  const float low = least_over<4>(least_of(turned));
  return high >= -low ? high : low;
}

// The number of midpoints below the ratio, found by halving.
template <int BITS>
FN uint turbo_code(float ratio, float midpoint_of_lane) {
  uint code = 0;
  UNROLL for (uint step = 1 << (BITS - 1); step > 0; step /= 2) {
    code += ratio > from_lane(midpoint_of_lane, code + step - 1) ? step : 0;
  }
  return code;
}

// Lays out the BITS bytes of each octet. Three bytes are not whole units: two lanes then make three units together.
template <int BITS>
FN void stage_codes(SHARED ushort* units, uint octet, uint word) {
  if (BITS == 3) {
    const uint next = from_lane_xor(word, 1);
    if (octet % 2 == 0) {
      units[octet / 2 * 3] = ushort(word);
      units[octet / 2 * 3 + 1] = ushort(word >> 16 | next << 8);
      units[octet / 2 * 3 + 2] = ushort(next >> 8);
    }
    return;
  }
  UNROLL for (uint i = 0; i < BITS / 2; ++i) units[octet * (BITS / 2) + i] = ushort(word >> 16 * i);
}

template <int BITS>
FN uint load_codes(const DEVICE uchar* from) {
  return BITS == 4 ? load_u16(from) | load_u16(from + 2) << 16
       : BITS == 3 ? uint(from[0]) | uint(from[1]) << 8 | uint(from[2]) << 16
                   : load_u16(from);
}
