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
  constexpr float target = MANTISSA == E4M3_MANTISSA ? 240.0f : 224.0f;
  Fp8Scale chosen;
  chosen.bits = float_to_half(corrected_quotient(largest, target, 1.0f / target));
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

// bfloat16 elements before the blocks of a row; the position of the first that is refused among this lane's, or NONE.
template <int ELEMENT>
FN uint store_rope(DEVICE uchar* to, const DEVICE uchar* source, Rows rows, uint row, uint rope, float limit, uint lane) {
  uint beyond = NONE;
  ROLLED for (uint element = lane; element < rope; element += 32) {
    const float value = load_element<ELEMENT>(source, rows, row, element);
    if (beyond == NONE && !(magnitude(value) <= limit)) beyond = element;
    store_u16(to + element * 2, float_to_bfloat(value));
  }
  return beyond;
}

// One SIMD group a row, STEPS times eight blocks at once, in `staged`. The four lanes of a block find its largest magnitude
// together; then each chooses the scale of its block in one of the steps.
template <int ELEMENT, int MANTISSA, int ROPE, int STEPS, bool WHOLE>
FN void pack_fp8(const DEVICE uchar* source, Rows rows, uint row_count, uint dim, float limit, DEVICE uchar* out,
                 DEVICE uint* refused, SHARED uint* staged, uint index, uint count, uint lane) {
  constexpr uint UNITS = 17;
  const Rows body = part_of(rows, ROPE, dim);
  const uint octets = (dim - ROPE) / 8;
  const uint head_bytes = fp8_head_bytes(ROPE);
  const uint row_bytes = head_bytes + octets / 4 * UNITS * 2;
  const uint first_of_block = lane - lane % 4;
  const uint own_step = lane % 4 % STEPS;
  SHARED ushort* units = (SHARED ushort*)staged;
  for (uint row = index / 32; row < row_count; row += count / 32) {
    DEVICE uchar* row_at = out + place_t(row) * row_bytes;
    const uint lead = (row * row_bytes + head_bytes) / 2 % 2;
    uint beyond = store_rope<ELEMENT>(row_at, source, rows, row, ROPE, limit, lane);
    bool refuses = beyond != NONE;
    float sum = 0.0f;
    ROLLED for (uint begin = 0; begin < octets; begin += 32 * STEPS) {
      RawOctet loaded[STEPS];
      UNROLL for (uint step = 0; step < STEPS; ++step) {
        const uint octet = begin + step * 32 + lane;
        loaded[step] = load_octet<ELEMENT, WHOLE>(source, body, row, octet < octets ? octet : octets - 1);
      }
      Ends own = {0, 0};
      UNROLL for (uint step = 0; step < STEPS; ++step) {
        const Ends ends = ends_over<ELEMENT, 4>(ends_of<ELEMENT>(loaded[step]));
        own = own_step == step ? ends : own;
      }
      const Range range = range_of<ELEMENT>(own);
      refuses = refuses || !within(range, limit);
      const Fp8Scale chosen = fp8_scale<MANTISSA>(most(-range.low, range.high));
      if (lane % 4 < STEPS) units[lead + (own_step * 8 + lane / 4) * UNITS] = ushort(chosen.bits);

      float own_sum = 0.0f;
      UNROLL for (uint step = 0; step < STEPS; ++step) {
        const float inverse = from_lane(chosen.inverse, first_of_block + step);
        const Octet values = flushed<ELEMENT>(octet_of<ELEMENT>(loaded[step]));
        uint pairs[4];
        UNROLL for (uint i = 0; i < 4; ++i) pairs[i] = fp8_pair<MANTISSA>(values, 2 * i, inverse);
        SHARED ushort* codes = units + lead + (step * 8 + lane / 4) * UNITS + 1 + lane % 4 * 4;
        UNROLL for (uint i = 0; i < 4; ++i) codes[i] = ushort(pairs[i]);
        if (ROPE == 0) {
          const Octet coded = fp8_values<MANTISSA>(pairs, from_lane(chosen.scale, first_of_block + step));
          const float block_sum = sum_of_products(coded, coded);
          own_sum = own_step == step && begin + step * 32 + lane < octets ? block_sum : own_sum;
        }
      }
      if (ROPE == 0) {
        // Zeros past the last block change no sum.
        UNROLL for (uint block = 0; block < 8 * STEPS; ++block) {
          sum = add(sum, from_lane(own_sum, block % 8 * 4 + block / 8));
        }
      }
      wait_for_lanes();
      const uint blocks = (octets - begin) / 4 < 8 * STEPS ? (octets - begin) / 4 : 8 * STEPS;
      copy_units(row_at + head_bytes + begin / 4 * UNITS * 2, staged, lead, blocks * UNITS, lane);
      wait_for_lanes();
    }
    if (any_of_lanes(refuses)) {
      ROLLED for (uint octet = lane; octet < octets; octet += 32) {
        const uint position = first_refused(octet_of<ELEMENT>(load_octet<ELEMENT, WHOLE>(source, body, row, octet)), limit);
        if (beyond == NONE && position != NONE) beyond = ROPE + octet * 8 + position;
      }
      beyond = least_of_lanes(beyond);
    }
    if (lane == 0) {
      refused[row] = flat_place(row, dim, beyond);
      if (ROPE == 0) store_u32(row_at, float_to_bits(sum));
    }
  }
}
