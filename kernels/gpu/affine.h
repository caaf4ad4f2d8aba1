// mlx's group-affine layouts: codes of a row, then fp16 scales of its groups, then fp16 biases.

enum { MLX = 0, ROUND_TRIP = 1 };

struct Affine {
  float scale;
  float bias;
};

FN uint affine_row_bytes(uint dim, uint bits, uint group) {
  return dim / 8 * bits + dim / group * 4;
}

// mx.quantize's rule on a CPU, as the oracle states it.
FN Affine choose_affine(float low, float high, float steps) {
  const bool low_is_end = magnitude(low) > magnitude(high);
  const float size = most(quotient(sub(high, low), steps), 1e-7f);
  const float end = low_is_end ? low : high;
  const float scale = low_is_end ? size : -size;
  const float whole = nearest(quotient(end, scale));
  Affine chosen = {scale, 0.0f};
  if (whole != 0.0f) {
    chosen.scale = quotient(end, whole);
    chosen.bias = end;
  }
  return chosen;
}

// The rule that aims at the scale and bias as they are stored.
FN Affine choose_affine_for_stored(float low, float high, float steps) {
  Affine chosen;
  chosen.scale = half_to_float(float_to_half(quotient(sub(high, low), steps)));
  chosen.bias = half_to_float(float_to_half(low));
  return chosen;
}

template <int BITS, int VARIANT>
FN void affine_words(Octet values, Affine affine, LOCAL uint* words) {
  const float top = float((1 << BITS) - 1);
  uint codes[8];
  UNROLL for (uint i = 0; i < 8; ++i) values.at[i] = sub(values.at[i], affine.bias);
  if (VARIANT == MLX) {
    quotient_codes(values, affine.scale, top, codes);
  } else {
    const float inverse = affine.scale > 0.0f ? quotient(1.0f, affine.scale) : 0.0f;
    UNROLL for (uint i = 0; i < 8; ++i) {
      codes[i] = uint(most(least(add(mul(values.at[i], inverse), 0.5f), top), 0.0f));
    }
  }
  words[0] = words[1] = 0;
  UNROLL for (uint i = 0; i < 8; ++i) words[i * BITS / 32] |= codes[i] << i * BITS % 32;
}

// Whether no product and no sum of the group can leave fp16's range.
FN bool is_modest(float scale, float bias, float top) {
  return mul(top, magnitude(scale)) <= 32000.0f && magnitude(bias) <= 32000.0f;
}

// fp16(fp16(code * scale) + bias); saturates where mx.dequantize would overflow.
FN float affine_value(uint code, float scale, float bias) {
  const float product = mul(float(code), scale);
  const float rounded = half_to_float(float_to_half(product));
  const float sum = add(magnitude_bits(rounded) == INFINITE ? product : rounded, bias);
  return half_to_float(float_to_half(saturated(sum, largest_bits<F16>())));
}

// The values of an octet as fp16, two in each word.
template <int BITS>
FN void affine_pairs(const LOCAL uint* words, uint scale_bits, uint bias_bits, LOCAL uint* pairs) {
  const float top = float((1 << BITS) - 1);
  const uint mask = (1 << BITS) - 1;
  const float scale = half_to_float(scale_bits);
  const float bias = half_to_float(bias_bits);
  uint codes[4];
  UNROLL for (uint i = 0; i < 4; ++i) {
    const uint both = words[2 * i * BITS / 32] >> 2 * i * BITS % 32;
    codes[i] = (both & mask) | (both >> BITS & mask) << 16;
  }
  if (is_modest(scale, bias, top)) {
    UNROLL for (uint i = 0; i < 4; ++i) {
      const uint product = product_of_halves(halves_of_integers(codes[i]), scale_bits | scale_bits << 16);
      pairs[i] = sum_of_halves(product, bias_bits | bias_bits << 16);
    }
  } else {
    UNROLL for (uint i = 0; i < 4; ++i) {
      pairs[i] = floats_to_halves(affine_value(codes[i] & 0xffffu, scale, bias),
                                  affine_value(codes[i] >> 16, scale, bias));
    }
  }
}

template <int ELEMENT>
FN void store_half_pairs(DEVICE uchar* to, Rows rows, uint row, uint octet, const LOCAL uint* pairs) {
  if (ELEMENT == F16) {
    store_octet_pairs(to, rows, row, octet, pairs);
    return;
  }
  Octet values;
  UNROLL for (uint i = 0; i < 8; ++i) values.at[i] = half_to_float(pairs[i / 2] >> i % 2 * 16 & 0xffffu);
  store_octet<ELEMENT>(to, rows, row, octet, values);
}
