// int8: float32 scale, float32 minimum, then a signed code for each element.

// The ends of what a lane has seen of a row, and the position in the row of the first value it must refuse.
struct RowEnds {
  float low;
  float high;
  uint refused;
};

template <int ELEMENT>
FN RowEnds widened(RowEnds ends, Octet values, uint octet, float limit) {
  const uint beyond = first_refused(values, limit);
  const Octet flat = flushed<ELEMENT>(values);
  ends.low = least(ends.low, least_of(flat));
  ends.high = most(ends.high, most_of(flat));
  if (ends.refused == NONE && beyond != NONE) ends.refused = octet * 8 + beyond;
  return ends;
}

FN float int8_scale(float low, float high) {
  const float scale = quotient(sub(high, low), 254.0f);
  // 2**-100, below which differences would be subnormal.
  return scale < 7.888609052210118e-31f ? 1.0f : scale;
}

// Eight codes, four to a word.
template <int ELEMENT>
FN void int8_words(Octet values, float low, float scale, LOCAL uint* words) {
  uint codes[8];
  UNROLL for (uint i = 0; i < 8; ++i) values.at[i] = sub(flush<ELEMENT>(values.at[i]), low);
  quotient_codes(values, scale, 254.0f, codes);
  words[0] = words[1] = 0;
  UNROLL for (uint i = 0; i < 8; ++i) words[i / 4] |= (codes[i] - 127u & 0xffu) << i % 4 * 8;
}

FN void store_int8_codes(DEVICE uchar* codes, uint octet, uint dim, const LOCAL uint* words) {
  if (octet * 8 + 8 <= dim) {
    store_u64(codes + octet * 8, words);
    return;
  }
  UNROLL for (uint i = 0; i < 7; ++i) {
    if (octet * 8 + i < dim) codes[octet * 8 + i] = uchar(words[i / 4] >> i % 4 * 8);
  }
}

FN void load_int8_codes(const DEVICE uchar* codes, uint octet, uint dim, LOCAL uint* words) {
  if (octet * 8 + 8 <= dim) {
    load_u64(codes + octet * 8, words);
    return;
  }
  words[0] = words[1] = 0;
  UNROLL for (uint i = 0; i < 7; ++i) {
    if (octet * 8 + i < dim) words[i / 4] |= uint(codes[octet * 8 + i]) << i % 4 * 8;
  }
}
