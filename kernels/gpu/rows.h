// Rows of elements, row-major or head-major, read and written eight elements (an octet) at a time.

struct Octet {
  float at[8];
};

// Element e of row r lies at `e / width * head + r * row + e % width * step`, counted in elements. Octets are counted from
// element `first` and end before element `end`.
struct Rows {
  place_t head;
  place_t row;
  place_t step;
  uint width;
  uint first;
  uint end;
};

FN Rows row_major(uint dim) {
  Rows rows = {0, dim, 1, dim, 0, dim};
  return rows;
}

FN Rows part_of(Rows rows, uint first, uint end) {
  rows.first = first;
  rows.end = end;
  return rows;
}

FN place_t element_place(Rows rows, uint row, uint element) {
  const uint head = element / rows.width;
  return head * rows.head + row * rows.row + (element - head * rows.width) * rows.step;
}

// Whether every octet is whole and lies within one head, its elements side by side.
FN bool has_whole_octets(Rows rows) {
  return rows.step == 1 && (rows.width | rows.first | rows.end) % 8 == 0;
}

FN uint octets_of(uint elements) {
  return (elements + 7) / 8;
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
FN RawOctet load_raw_octet(const DEVICE uchar* from, Rows rows, uint row, uint octet) {
  RawOctet raw;
  if (has_whole_octets(rows)) {
    const place_t place = element_place(rows, row, rows.first + octet * 8);
    if (ELEMENT == F32) {
      load_8_words((const DEVICE uint*)from + place, raw.words);
    } else {
      load_8_halves((const DEVICE ushort*)from + place, raw.words);
    }
    return raw;
  }
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

FN void store_octet_words(DEVICE uchar* to, Rows rows, uint row, uint octet, const LOCAL uint* words) {
  if (has_whole_octets(rows)) {
    store_8_words((DEVICE uint*)to + element_place(rows, row, rows.first + octet * 8), words);
    return;
  }
  UNROLL for (uint i = 0; i < 8; ++i) {
    const uint element = rows.first + octet * 8 + i;
    if (element < rows.end) ((DEVICE uint*)to)[element_place(rows, row, element)] = words[i];
  }
}

// The same for elements of 16 bits, two in each word.
FN void store_octet_pairs(DEVICE uchar* to, Rows rows, uint row, uint octet, const LOCAL uint* pairs) {
  if (has_whole_octets(rows)) {
    store_8_halves((DEVICE ushort*)to + element_place(rows, row, rows.first + octet * 8), pairs);
    return;
  }
  UNROLL for (uint i = 0; i < 8; ++i) {
    const uint element = rows.first + octet * 8 + i;
    const ushort bits = ushort(pairs[i / 2] >> i % 2 * 16);
    if (element < rows.end) ((DEVICE ushort*)to)[element_place(rows, row, element)] = bits;
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
  if (ELEMENT == F32) {
    uint words[8];
    UNROLL for (uint i = 0; i < 8; ++i) words[i] = float_to_bits(values.at[i]);
    store_octet_words(to, rows, row, octet, words);
  } else {
    uint pairs[4];
    UNROLL for (uint i = 0; i < 4; ++i) pairs[i] = floats_to_pair<ELEMENT>(values.at[2 * i], values.at[2 * i + 1]);
    store_octet_pairs(to, rows, row, octet, pairs);
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

// rint(value / scale), at most `top`, for values and a scale of one sign and quotients up to 1000.
//
// The product with the rounded inverse of the scale is within 2.5e-7 of the quotient, relatively. Only where a tie could
// lie between the two does the division have to be made.
FN void quotient_codes(Octet values, float scale, float top, LOCAL uint* codes) {
  const float inverse = quotient(1.0f, scale);
  bool close = false;
  UNROLL for (uint i = 0; i < 8; ++i) {
    const float product = least(mul(values.at[i], inverse), top);
    const float raised = add(product, ROUNDER);
    const float to_whole = magnitude(sub(product, sub(raised, ROUNDER)));
    close = close || magnitude(sub(to_whole, 0.5f)) <= 0.0009765625f;
    codes[i] = float_to_bits(raised) & 0x3ffu;
  }
  if (close) {
    UNROLL for (uint i = 0; i < 8; ++i) {
      codes[i] = float_to_bits(add(least(quotient(values.at[i], scale), top), ROUNDER)) & 0x3ffu;
    }
  }
}
