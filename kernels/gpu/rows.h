// Rows of elements, row-major or head-major, read and written eight elements (an octet) at a time.

struct Octet {
  float at[8];
};

// Element e of row r lies at `e / width * head + r * row + e % width * step`, counted in elements.
struct Rows {
  place_t head;
  place_t row;
  place_t step;
  uint width;
  uint dim;
};

FN Rows row_major(uint dim) {
  Rows rows = {0, dim, 1, dim, dim};
  return rows;
}

FN place_t element_place(Rows rows, uint row, uint element) {
  const uint head = element / rows.width;
  return head * rows.head + row * rows.row + (element - head * rows.width) * rows.step;
}

// Whether every octet lies within one head, its elements side by side.
FN bool has_whole_octets(Rows rows) {
  return rows.step == 1 && rows.width % 8 == 0;
}

FN uint octets_in_row(uint dim) {
  return (dim + 7) / 8;
}

template <int ELEMENT>
FN float element_to_float(uint bits) {
  return ELEMENT == F32 ? bits_to_float(bits) : ELEMENT == F16 ? half_to_float(bits) : bfloat_to_float(bits);
}

template <int ELEMENT>
FN uint float_to_element(float value) {
  return ELEMENT == F32 ? float_to_bits(value) : ELEMENT == F16 ? float_to_half(value) : float_to_bfloat(value);
}

// The bits of an octet, one element in each word. An octet that a row's end cuts short repeats its last element.
template <int ELEMENT>
FN void load_octet_bits(const DEVICE uchar* from, Rows rows, uint row, uint octet, LOCAL uint* bits) {
  if (has_whole_octets(rows)) {
    const place_t place = element_place(rows, row, octet * 8);
    if (ELEMENT == F32) {
      load_8_words((const DEVICE uint*)from + place, bits);
      return;
    }
    uint pairs[4];
    load_8_halves((const DEVICE ushort*)from + place, pairs);
    UNROLL for (uint i = 0; i < 8; ++i) bits[i] = i % 2 ? pairs[i / 2] >> 16 : pairs[i / 2] & 0xffffu;
    return;
  }
  for (uint i = 0; i < 8; ++i) {
    const uint element = octet * 8 + i < rows.dim ? octet * 8 + i : rows.dim - 1;
    const place_t place = element_place(rows, row, element);
    bits[i] = ELEMENT == F32 ? ((const DEVICE uint*)from)[place] : ((const DEVICE ushort*)from)[place];
  }
}

template <int ELEMENT>
FN void store_octet_bits(DEVICE uchar* to, Rows rows, uint row, uint octet, const LOCAL uint* bits) {
  if (has_whole_octets(rows)) {
    const place_t place = element_place(rows, row, octet * 8);
    if (ELEMENT == F32) {
      store_8_words((DEVICE uint*)to + place, bits);
      return;
    }
    uint pairs[4];
    UNROLL for (uint i = 0; i < 4; ++i) pairs[i] = bits[2 * i] | bits[2 * i + 1] << 16;
    store_8_halves((DEVICE ushort*)to + place, pairs);
    return;
  }
  for (uint i = 0; i < 8 && octet * 8 + i < rows.dim; ++i) {
    const place_t place = element_place(rows, row, octet * 8 + i);
    if (ELEMENT == F32) {
      ((DEVICE uint*)to)[place] = bits[i];
    } else {
      ((DEVICE ushort*)to)[place] = ushort(bits[i]);
    }
  }
}

template <int ELEMENT>
FN Octet load_octet(const DEVICE uchar* from, Rows rows, uint row, uint octet) {
  uint bits[8];
  load_octet_bits<ELEMENT>(from, rows, row, octet, bits);
  Octet values;
  UNROLL for (uint i = 0; i < 8; ++i) values.at[i] = element_to_float<ELEMENT>(bits[i]);
  return values;
}

// A finite value beyond what the element holds becomes its largest finite value.
template <int ELEMENT>
FN float saturated(float value) {
  if (ELEMENT == F32) return value;
  const float limit = ELEMENT == F16 ? 65504.0f : bits_to_float(0x7f7f0000u);
  return is_finite(value) ? most(least(value, limit), -limit) : value;
}

template <int ELEMENT>
FN void store_octet(DEVICE uchar* to, Rows rows, uint row, uint octet, Octet values) {
  uint bits[8];
  UNROLL for (uint i = 0; i < 8; ++i) bits[i] = float_to_element<ELEMENT>(saturated<ELEMENT>(values.at[i]));
  store_octet_bits<ELEMENT>(to, rows, row, octet, bits);
}

// Position in the octet of the first value that is not finite or beyond the limit; NONE if all may be stored.
#define NONE 0xffffffffu

FN uint first_refused(Octet values, float limit) {
  bool fine = true;
  UNROLL for (uint i = 0; i < 8; ++i) fine = fine && magnitude(values.at[i]) <= limit;
  if (fine) return NONE;
  uint first = 8;
  for (uint i = 8; i > 0; --i) first = magnitude(values.at[i - 1]) <= limit ? first : i - 1;
  return first;
}
