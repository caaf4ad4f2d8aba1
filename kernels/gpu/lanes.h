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
