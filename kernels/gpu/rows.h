// Rows of elements, row-major or head-major, read and written eight elements (an octet) at a time.

struct Octet {
  float at[8];
};

// Element e of row r lies at `e / width * head + r * row + e % width * step`, counted in elements. Octets are counted from
// element `first` and end before element `end`. `whole`: every octet is whole, lies within one head, its elements side by
// side, and may be accessed at once. `by_width` is 2**32 / width, rounded up.
struct Rows {
  place_t head;
  place_t row;
  place_t step;
  uint width;
  uint by_width;
  uint first;
  uint end;
  bool whole;
};

FN Rows rows_at(const DEVICE uchar* base, place_t head, place_t row, place_t step, uint width, uint dim) {
  Rows rows = {head, row, step, width, 0xffffffffu / width + 1, 0, dim, false};
  rows.whole = step == 1 && (width | dim | head | row) % 8 == 0 && may_load_16_bytes(base);
  return rows;
}

FN Rows row_major(const DEVICE uchar* base, uint dim) {
  return rows_at(base, 0, dim, 1, dim, dim);
}

FN Rows part_of(Rows rows, uint first, uint end) {
  rows.whole = rows.whole && (first | end) % 8 == 0;
  rows.first = first;
  rows.end = end;
  return rows;
}

// The product's upper half is element / width, exactly, since both are at most 2**13; for a width of 1, by_width is 0.
FN place_t element_place(Rows rows, uint row, uint element) {
  const uint head = rows.width == 1 ? element : upper_product(element, rows.by_width);
  return head * rows.head + row * rows.row + (element - head * rows.width) * rows.step;
}

FN place_t whole_octet_place(Rows rows, uint row, uint octet) {
  const uint element = rows.first + octet * 8;
  const uint head = upper_product(element, rows.by_width);
  return head * rows.head + row * rows.row + (element - head * rows.width);
}

FN uint octets_of(uint elements) {
  return (elements + 7) / 8;
}

FN uint at_most(uint value, uint most) {
  return value < most ? value : most;
}

// Kernels without sums over a row take the same octet of STEPS rows, a column, in each lane: a SIMD group 32 columns side by
// side, or from the end of some rows and the beginning of the next.
struct Column {
  uint row;
  uint octet;
};

template <int STEPS>
FN uint columns_of(uint row_count, uint octets) {
  return (row_count + STEPS - 1) / STEPS * octets;
}

template <int STEPS>
FN Column column_at(uint at, uint octets) {
  const uint rows = at / octets;
  Column column = {rows * STEPS, at - rows * octets};
  return column;
}

// What a pack kernel reports: the place of an element among those of all rows, or NONE.
FN uint flat_place(uint row, uint dim, uint position) {
  return position == NONE ? NONE : row * dim + position;
}

template <int ELEMENT>
FN float element_to_float(uint bits) {
  return ELEMENT == F32 ? bits_to_float(bits) : ELEMENT == F16 ? half_to_float(bits) : bfloat_to_float(bits);
}

// The largest finite value of an element type.
template <int ELEMENT>
FN uint largest_bits() {
  return ELEMENT == F32 ? 0x7f7fffffu : ELEMENT == F16 ? 0x477fe000u : 0x7f7f0000u;
}

// An octet as it lies in memory: 8 words, or 4 for elements of 16 bits, two in each.
struct RawOctet {
  uint words[8];
};

template <int ELEMENT>
FN uint element_bits(RawOctet raw, uint i) {
  return ELEMENT == F32 ? raw.words[i] : raw.words[i / 2] >> i % 2 * 16 & 0xffffu;
}

// An octet that is cut short repeats its last element.
template <int ELEMENT>
RARE_FN RawOctet load_ragged_octet(const DEVICE uchar* from, Rows rows, uint row, uint octet) {
  RawOctet raw;
  UNROLL for (uint i = 0; i < 8; ++i) {
    const uint wanted = rows.first + octet * 8 + i;
    const uint element = wanted < rows.end ? wanted : rows.end - 1;
    const place_t place = element_place(rows, row, element);
    if (ELEMENT == F32) {
      raw.words[i] = ((const DEVICE uint*)from)[place];
    } else {
      const uint bits = ((const DEVICE ushort*)from)[place];
      raw.words[i / 2] = i % 2 == 0 ? bits : raw.words[i / 2] | bits << 16;
    }
  }
  return raw;
}

template <int ELEMENT, bool WHOLE>
FN RawOctet load_octet(const DEVICE uchar* from, Rows rows, uint row, uint octet) {
  if (!WHOLE) return load_ragged_octet<ELEMENT>(from, rows, row, octet);
  RawOctet raw;
  const place_t place = whole_octet_place(rows, row, octet);
  if (ELEMENT == F32) {
    load_8_words((const DEVICE uint*)from + place, raw.words);
  } else {
    load_8_halves((const DEVICE ushort*)from + place, raw.words);
  }
  return raw;
}

// The same octet of STEPS rows; the last row stands for those past it.
template <int ELEMENT, int STEPS, bool WHOLE>
FN void load_column(const DEVICE uchar* from, Rows rows, uint row, uint row_count, uint octet, LOCAL RawOctet* loaded) {
  UNROLL for (uint step = 0; step < STEPS; ++step) {
    loaded[step] = load_octet<ELEMENT, WHOLE>(from, rows, at_most(row + step, row_count - 1), octet);
  }
}

template <int ELEMENT>
FN RawOctet load_raw_octet(const DEVICE uchar* from, Rows rows, uint row, uint octet) {
  if (rows.whole) return load_octet<ELEMENT, true>(from, rows, row, octet);
  return load_octet<ELEMENT, false>(from, rows, row, octet);
}

template <int ELEMENT>
FN float load_element(const DEVICE uchar* from, Rows rows, uint row, uint element) {
  const place_t place = element_place(rows, row, element);
  const uint bits = ELEMENT == F32 ? ((const DEVICE uint*)from)[place] : ((const DEVICE ushort*)from)[place];
  return element_to_float<ELEMENT>(bits);
}

template <int ELEMENT>
FN Octet octet_of(RawOctet raw) {
  Octet values;
  UNROLL for (uint i = 0; i < 8; ++i) values.at[i] = element_to_float<ELEMENT>(element_bits<ELEMENT>(raw, i));
  return values;
}

template <int SIZE>
RARE_FN void store_ragged_octet(DEVICE uchar* to, Rows rows, uint row, uint octet, RawOctet raw) {
  UNROLL for (uint i = 0; i < 8; ++i) {
    const uint element = rows.first + octet * 8 + i;
    if (element < rows.end) {
      const place_t place = element_place(rows, row, element);
      if (SIZE == 4) {
        ((DEVICE uint*)to)[place] = raw.words[i];
      } else {
        ((DEVICE ushort*)to)[place] = ushort(raw.words[i / 2] >> i % 2 * 16);
      }
    }
  }
}

FN void store_octet_words(DEVICE uchar* to, Rows rows, uint row, uint octet, RawOctet raw) {
  if (rows.whole) {
    store_8_words((DEVICE uint*)to + whole_octet_place(rows, row, octet), raw.words);
  } else {
    store_ragged_octet<4>(to, rows, row, octet, raw);
  }
}

// The same for elements of 16 bits, two in each word.
FN void store_octet_pairs(DEVICE uchar* to, Rows rows, uint row, uint octet, RawOctet raw) {
  if (rows.whole) {
    store_8_halves((DEVICE ushort*)to + whole_octet_place(rows, row, octet), raw.words);
  } else {
    store_ragged_octet<2>(to, rows, row, octet, raw);
  }
}

// Two elements, the first in the low half of the word. A finite value beyond what the element holds becomes its largest
// finite value.
template <int ELEMENT>
FN uint floats_to_pair(float first, float second) {
  const float a = saturated(first, largest_bits<ELEMENT>());
  const float b = saturated(second, largest_bits<ELEMENT>());
  return ELEMENT == F16 ? floats_to_halves(a, b) : floats_to_bfloats(a, b);
}

template <int ELEMENT>
FN void store_element(DEVICE uchar* to, Rows rows, uint row, uint element, float value) {
  const place_t place = element_place(rows, row, element);
  if (ELEMENT == F32) {
    ((DEVICE uint*)to)[place] = float_to_bits(value);
  } else {
    ((DEVICE ushort*)to)[place] = ushort(floats_to_pair<ELEMENT>(value, 0.0f));
  }
}

template <int ELEMENT>
FN void store_octet(DEVICE uchar* to, Rows rows, uint row, uint octet, Octet values) {
  RawOctet raw;
  if (ELEMENT == F32) {
    UNROLL for (uint i = 0; i < 8; ++i) raw.words[i] = float_to_bits(values.at[i]);
    store_octet_words(to, rows, row, octet, raw);
  } else {
    UNROLL for (uint i = 0; i < 4; ++i) raw.words[i] = floats_to_pair<ELEMENT>(values.at[2 * i], values.at[2 * i + 1]);
    store_octet_pairs(to, rows, row, octet, raw);
  }
}

// Position in the octet of the first value that is beyond the limit or not finite; NONE if all may be coded.
FN uint first_refused(Octet values, float limit) {
  bool fine = true;
  UNROLL for (uint i = 0; i < 8; ++i) fine = fine && magnitude(values.at[i]) <= limit;
  uint first = NONE;
  if (!fine) {
    UNROLL for (uint i = 8; i > 0; --i) first = magnitude(values.at[i - 1]) <= limit ? first : i - 1;
  }
  return first;
}

template <int ELEMENT>
FN Octet flushed(Octet values) {
  UNROLL for (uint i = 0; i < 8; ++i) values.at[i] = flush<ELEMENT>(values.at[i]);
  return values;
}

FN float least_of(Octet values) {
  float result = values.at[0];
  UNROLL for (uint i = 1; i < 8; ++i) result = least(result, values.at[i]);
  return result;
}

FN float most_of(Octet values) {
  float result = values.at[0];
  UNROLL for (uint i = 1; i < 8; ++i) result = most(result, values.at[i]);
  return result;
}

FN float largest_magnitude(Octet values) {
  float result = magnitude(values.at[0]);
  UNROLL for (uint i = 1; i < 8; ++i) result = most(result, magnitude(values.at[i]));
  return result;
}

// 1.5 * 2**23: added to a number below 2**22, it leaves the nearest integer, ties to even, in the lowest bits.
#define ROUNDER 12582912.0f

// value / scale, from the rounded inverse of the scale. Near a tie between two integers below 2**8 it is the quotient as
// divided, so rint of it is too; so is the quotient of any number by 15, 254, 255, 240 or 224. Both were found by trying
// every mantissa. No step may reach the subnormals.
FN float corrected_quotient(float value, float scale, float inverse) {
  const float product = mul(value, inverse);
  return fused(fused(-product, scale, value), inverse, product);
}

// A word of the integers that were raised by ROUNDER, the first in the lowest BITS.
template <int BITS>
FN uint packed_codes(const LOCAL float* raised) {
  constexpr uint COUNT = 32 / BITS;
  constexpr uint ones = BITS == 4 ? 0x11111111u : 0x01010101u;
  uint word = 0;
  UNROLL for (uint i = COUNT; i > 0; --i) word = (word << BITS) + float_to_bits(raised[i - 1]);
  return word - 0x4b400000u * ones;
}
