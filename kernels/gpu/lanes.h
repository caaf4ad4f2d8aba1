// Sums and extremes over the lanes that share a group of elements. All 32 lanes call these together.

template <int LANES>
FN float least_over(float value) {
  UNROLL for (uint mask = 1; mask < LANES; mask *= 2) value = least(value, from_lane_xor(value, mask));
  return value;
}

template <int LANES>
FN float most_over(float value) {
  UNROLL for (uint mask = 1; mask < LANES; mask *= 2) value = most(value, from_lane_xor(value, mask));
  return value;
}

// The ends of a group's elements. Those of 16 bits lie two in a word, side by side; words of F32 hold one. A NaN becomes one
// of the ends, so the ends tell whether all elements may be coded.
struct Ends {
  uint low;
  uint high;
};

struct Range {
  float low;
  float high;
};

template <int ELEMENT>
FN uint least_words(uint a, uint b) {
  if (ELEMENT == F16) return least_halves(a, b);
  if (ELEMENT == BF16) return least_bfloats(a, b);
  const float value = bits_to_float(a);
  return value < bits_to_float(b) || value != value ? a : b;
}

template <int ELEMENT>
FN uint most_words(uint a, uint b) {
  if (ELEMENT == F16) return most_halves(a, b);
  if (ELEMENT == BF16) return most_bfloats(a, b);
  const float value = bits_to_float(a);
  return value > bits_to_float(b) || value != value ? a : b;
}

template <int ELEMENT>
FN Ends joined(Ends a, Ends b) {
  Ends both = {least_words<ELEMENT>(a.low, b.low), most_words<ELEMENT>(a.high, b.high)};
  return both;
}

template <int ELEMENT>
FN Ends ends_of(RawOctet raw) {
  Ends ends = {raw.words[0], raw.words[0]};
  UNROLL for (uint i = 1; i < (ELEMENT == F32 ? 8 : 4); ++i) {
    const Ends one = {raw.words[i], raw.words[i]};
    ends = joined<ELEMENT>(ends, one);
  }
  return ends;
}

// The ends over LANES lanes, both negated so that the least of each is wanted: of 16 bits in `low` alone, beside each other.
template <int ELEMENT, int LANES>
FN Ends ends_over(Ends ends) {
  Ends all = {ends.low, ends.high ^ 0x80000000u};
  if (ELEMENT != F32) {
    const uint first = (ends.low & 0xffffu) | ends.high << 16;
    const uint second = ends.low >> 16 | (ends.high & 0xffff0000u);
    all.low = least_words<ELEMENT>(first ^ 0x80000000u, second ^ 0x80000000u);
  }
  UNROLL for (uint mask = 1; mask < LANES; mask *= 2) {
    all.low = least_words<ELEMENT>(all.low, from_lane_xor(all.low, mask));
    if (ELEMENT == F32) all.high = least_words<ELEMENT>(all.high, from_lane_xor(all.high, mask));
  }
  return all;
}

template <int ELEMENT>
FN Range range_of(Ends all) {
  const uint low = ELEMENT == F32 ? all.low : all.low & 0xffffu;
  const uint high = ELEMENT == F32 ? all.high : all.low >> 16;
  Range range = {flush<ELEMENT>(element_to_float<ELEMENT>(low)), flush<ELEMENT>(-element_to_float<ELEMENT>(high))};
  return range;
}

FN bool within(Range range, float limit) {
  return magnitude(range.low) <= limit && magnitude(range.high) <= limit;
}

// Sums of products in the order of the oracle's row_sum: halves of an octet onto each other, then the four octets of 32 in
// pairs.
FN float sum_of_products(Octet a, Octet b) {
  float terms[8];
  UNROLL for (uint i = 0; i < 8; ++i) terms[i] = mul(a.at[i], b.at[i]);
  UNROLL for (uint i = 0; i < 4; ++i) terms[i] = add(terms[i], terms[i + 4]);
  float sum = add(add(terms[0], terms[2]), add(terms[1], terms[3]));
  sum = add(sum, from_lane_xor(sum, 1));
  return add(sum, from_lane_xor(sum, 2));
}

template <int LANES>
FN uint least_over_bits(uint value) {
  UNROLL for (uint mask = 1; mask < LANES; mask *= 2) {
    const uint other = from_lane_xor(value, mask);
    value = other < value ? other : value;
  }
  return value;
}

// The unnormalized Hadamard transform of the LANES octets, by butterflies of strides 1, 2, 4 within them and 8, 16, ... between.
template <int LANES>
FN Octet hadamard(Octet values, uint lane) {
  UNROLL for (uint stride = 1; stride < 8; stride *= 2) {
    UNROLL for (uint i = 0; i < 8; ++i) {
      if ((i & stride) == 0) {
        const float a = values.at[i];
        const float b = values.at[i + stride];
        values.at[i] = add(a, b);
        values.at[i + stride] = sub(a, b);
      }
    }
  }
  UNROLL for (uint mask = 1; mask < LANES; mask *= 2) {
    UNROLL for (uint i = 0; i < 8; ++i) {
      const float other = from_lane_xor(values.at[i], mask);
      values.at[i] = (lane & mask) == 0 ? add(values.at[i], other) : sub(other, values.at[i]);
    }
  }
  return values;
}
