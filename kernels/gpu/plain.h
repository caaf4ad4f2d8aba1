// fp32, fp16, bf16: conversions, exact about NaN.

template <int FROM, int TO>
FN uint converted(uint bits) {
  float value = FROM == F32 ? bits_to_float(bits) : FROM == F16 ? half_to_float(bits) : bfloat_to_float(bits);
  if (FROM == F16 && (bits & 0x7fffu) > 0x7c00u) value = half_to_float_by_parts(bits);
  if (TO == F32) return float_to_bits(value);
  value = saturated(value, largest_bits<TO>());
  if (TO == BF16) return float_to_bfloat(value);
  return magnitude_bits(value) > INFINITE ? float_to_half_by_parts(value) : float_to_half(value);
}

template <int FROM, int TO>
FN void store_converted(DEVICE uchar* to, Rows rows, uint row, uint octet, RawOctet raw) {
  uint words[8];
  UNROLL for (uint i = 0; i < 8; ++i) words[i] = converted<FROM, TO>(element_bits<FROM>(raw, i));
  if (TO == F32) {
    store_octet_words(to, rows, row, octet, words);
  } else {
    UNROLL for (uint i = 0; i < 4; ++i) words[i] = words[2 * i] | words[2 * i + 1] << 16;
    store_octet_pairs(to, rows, row, octet, words);
  }
}

// Position in the octet of the first finite value beyond the limit, or NONE.
FN uint first_overflow(Octet values, uint limit_bits) {
  uint first = NONE;
  UNROLL for (uint i = 8; i > 0; --i) {
    const uint size = magnitude_bits(values.at[i - 1]);
    first = size > limit_bits && size < INFINITE ? i - 1 : first;
  }
  return first;
}
