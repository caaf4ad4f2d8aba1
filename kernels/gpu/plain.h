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

// Two numbers of 16 bits; a NaN stays one and becomes quiet.
template <int ELEMENT>
FN uint quiet_pair(uint pair) {
  const uint sizes = pair & 0x7fff7fffu;
  return ELEMENT == F16 ? pair | (sizes + 0x03ff03ffu & 0x80008000u) >> 6
                        : pair | (sizes + 0x007f007fu & 0x80008000u) >> 9;
}

template <int FROM, int TO>
FN void store_converted(DEVICE uchar* to, Rows rows, uint row, uint octet, RawOctet raw) {
  RawOctet stored;
  if (FROM == TO && FROM != F32) {
    UNROLL for (uint i = 0; i < 4; ++i) stored.words[i] = quiet_pair<FROM>(raw.words[i]);
    store_octet_pairs(to, rows, row, octet, stored);
    return;
  }
  UNROLL for (uint i = 0; i < 8; ++i) stored.words[i] = converted<FROM, TO>(element_bits<FROM>(raw, i));
  if (TO == F32) {
    store_octet_words(to, rows, row, octet, stored);
  } else {
    UNROLL for (uint i = 0; i < 4; ++i) stored.words[i] = stored.words[2 * i] | stored.words[2 * i + 1] << 16;
    store_octet_pairs(to, rows, row, octet, stored);
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

// A column of STEPS octets a lane. Only finite values can be refused: NaN and infinities are kept. What has the type that is
// wanted is never refused.
template <int FROM, int TO, int STEPS, bool REPORTS, bool WHOLE>
FN void convert_rows(const DEVICE uchar* from, Rows from_rows, DEVICE uchar* to, Rows to_rows, uint row_count, uint dim,
                     uint limit_bits, DEVICE uint* refused, uint index, uint count, uint lane) {
  const uint octets = octets_of(dim);
  const uint columns = columns_of<STEPS>(row_count, octets);
  to_rows.whole = WHOLE;
  uint first = NONE;
  for (uint begin = index - lane; begin < columns; begin += count) {
    const Column at = column_at<STEPS>(at_most(begin + lane, columns - 1), octets);
    RawOctet loaded[STEPS];
    load_column<FROM, STEPS, WHOLE>(from, from_rows, at.row, row_count, at.octet, loaded);
    UNROLL for (uint step = 0; step < STEPS; ++step) {
      if (REPORTS && FROM != TO) {
        const uint beyond = first_overflow(octet_of<FROM>(loaded[step]), limit_bits);
        const uint place = flat_place(at_most(at.row + step, row_count - 1), dim, at.octet * 8 + beyond);
        if (beyond != NONE) first = at_most(first, place);
      }
      if (begin + lane < columns && at.row + step < row_count) store_converted<FROM, TO>(to, to_rows, at.row + step, at.octet, loaded[step]);
    }
  }
  if (REPORTS) {
    first = least_of_lanes(first);
    if (lane == 0) refused[index / 32] = first;
  }
}
