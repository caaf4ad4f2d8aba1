// int8: float32 scale, float32 minimum, then a signed code for each element.

FN float int8_scale(float low, float high) {
  const float scale = corrected_quotient(sub(high, low), 254.0f, 1.0f / 254.0f);
  // 2**-100, below which differences would be subnormal.
  return scale < 7.888609052210118e-31f ? 1.0f : scale;
}

// How codes are chosen: the scale and minimum are raised by a power of two where steps on the way to a code could otherwise be
// subnormal. The differences of elements that are float32 subnormals never count.
struct Int8Steps {
  float lift;
  float low;
  float scale;
  float inverse;
};

FN Int8Steps int8_steps(float low, float scale) {
  Int8Steps steps;
  steps.lift = scale < 8.673617379884035e-19f ? 1.8446744073709552e19f : 1.0f;
  steps.low = mul(low, steps.lift);
  steps.scale = mul(scale, steps.lift);
  steps.inverse = quotient(1.0f, steps.scale);
  return steps;
}

// Eight codes, four to a word: 0..254, less 127.
FN void int8_words(Octet values, Int8Steps steps, LOCAL uint* words) {
  float raised[8];
  UNROLL for (uint i = 0; i < 8; ++i) {
    const float above = fused(values.at[i], steps.lift, -steps.low);
    raised[i] = add(corrected_quotient(above, steps.scale, steps.inverse), ROUNDER);
  }
  UNROLL for (uint i = 0; i < 2; ++i) words[i] = (packed_codes<8>(raised + 4 * i) + 0x01010101u) ^ 0x80808080u;
}

template <bool WHOLE>
FN void store_int8_codes(DEVICE uchar* codes, uint octet, uint dim, const LOCAL uint* words) {
  if (WHOLE) {
    store_2_words((DEVICE uint*)(codes + octet * 8), words);
    return;
  }
  if (octet * 8 + 8 <= dim) {
    store_u64(codes + octet * 8, words);
    return;
  }
  UNROLL for (uint i = 0; i < 7; ++i) {
    if (octet * 8 + i < dim) codes[octet * 8 + i] = uchar(words[i / 4] >> i % 4 * 8);
  }
}

template <bool WHOLE>
FN void load_int8_codes(const DEVICE uchar* codes, uint octet, uint dim, LOCAL uint* words) {
  if (WHOLE) {
    load_2_words((const DEVICE uint*)(codes + octet * 8), words);
    return;
  }
  if (octet * 8 + 8 <= dim) {
    load_u64(codes + octet * 8, words);
    return;
  }
  words[0] = words[1] = 0;
  UNROLL for (uint i = 0; i < 7; ++i) {
    if (octet * 8 + i < dim) words[i / 4] |= uint(codes[octet * 8 + i]) << i % 4 * 8;
  }
}

// A column of STEPS octets a lane.
template <int ELEMENT, int STEPS, bool WHOLE>
FN void unpack_int8(const DEVICE uchar* packed, DEVICE uchar* target, Rows rows, uint row_count, uint dim, uint index,
                    uint count) {
  const uint octets = octets_of(dim);
  const uint columns = columns_of<STEPS>(row_count, octets);
  for (uint begin = index; begin < columns; begin += count) {
    const Column at = column_at<STEPS>(begin, octets);
    uint words[STEPS][2];
    uint params[STEPS][2];
    UNROLL for (uint step = 0; step < STEPS; ++step) {
      const DEVICE uchar* row_at = packed + place_t(at_most(at.row + step, row_count - 1)) * (8 + dim);
      load_int8_codes<WHOLE>(row_at, 0, 8, params[step]);
      load_int8_codes<WHOLE>(row_at + 8, at.octet, dim, words[step]);
    }
    UNROLL for (uint step = 0; step < STEPS; ++step) {
      const float scale = bits_to_float(params[step][0]);
      const float low = bits_to_float(params[step][1]);
      Octet values;
      UNROLL for (uint i = 0; i < 8; ++i) {
        // Adding 128 to a byte in two's complement gives code + 128 without a sign to extend.
        const uint raised = (words[step][i / 4] >> (i % 4 * 8) & 0xffu) ^ 0x80u;
        values.at[i] = add(mul(sub(float(raised), 1.0f), scale), low);
      }
      if (at.row + step < row_count) store_octet<ELEMENT>(target, rows, at.row + step, at.octet, values);
    }
  }
}

// One SIMD group a row, an octet a lane and step. The first KEEP steps of a row stay in registers between the search for its
// ends and the coding; the rest of a longer row is read twice, the second time from the cache.
template <int ELEMENT, int KEEP, bool WHOLE>
FN void pack_int8(const DEVICE uchar* source, Rows rows, uint row_count, uint dim, float limit, DEVICE uchar* out,
                  DEVICE uint* refused, uint index, uint count, uint lane) {
  const uint octets = octets_of(dim);
  for (uint row = index / 32; row < row_count; row += count / 32) {
    RawOctet kept[KEEP];
    UNROLL for (uint step = 0; step < KEEP; ++step) {
      const uint octet = step * 32 + lane < octets ? step * 32 + lane : octets - 1;
      kept[step] = load_octet<ELEMENT, WHOLE>(source, rows, row, octet);
    }
    Ends ends = ends_of<ELEMENT>(kept[0]);
    UNROLL for (uint step = 1; step < KEEP; ++step) ends = joined<ELEMENT>(ends, ends_of<ELEMENT>(kept[step]));
    ROLLED for (uint octet = KEEP * 32 + lane; octet < octets; octet += 32) {
      ends = joined<ELEMENT>(ends, ends_of<ELEMENT>(load_octet<ELEMENT, WHOLE>(source, rows, row, octet)));
    }
    const Range range = range_of<ELEMENT>(ends_over<ELEMENT, 32>(ends));
    const float scale = int8_scale(range.low, range.high);
    const Int8Steps steps = int8_steps(range.low, scale);
    uint first = NONE;
    if (!within(range, limit)) {
      ROLLED for (uint octet = lane; octet < octets; octet += 32) {
        const RawOctet raw = load_octet<ELEMENT, WHOLE>(source, rows, row, octet);
        const uint beyond = first_refused(octet_of<ELEMENT>(raw), limit);
        if (first == NONE && beyond != NONE) first = octet * 8 + beyond;
      }
      first = least_of_lanes(first);
    }

    DEVICE uchar* row_at = out + place_t(row) * (8 + dim);
    if (lane == 0) {
      refused[row] = flat_place(row, dim, first);
      store_u32(row_at, float_to_bits(scale));
      store_u32(row_at + 4, float_to_bits(range.low));
    }
    uint words[2];
    UNROLL for (uint step = 0; step < KEEP; ++step) {
      const uint octet = step * 32 + lane;
      int8_words(octet_of<ELEMENT>(kept[step]), steps, words);
      if (octet < octets) store_int8_codes<WHOLE>(row_at + 8, octet, dim, words);
    }
    ROLLED for (uint octet = KEEP * 32 + lane; octet < octets; octet += 32) {
      int8_words(octet_of<ELEMENT>(load_octet<ELEMENT, WHOLE>(source, rows, row, octet)), steps, words);
      store_int8_codes<WHOLE>(row_at + 8, octet, dim, words);
    }
  }
}
