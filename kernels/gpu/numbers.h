// Number formats in the shared dialect. A 16-bit number travels in the low half of a `uint`.
//
// The conversions below use integers and exact float steps only, so they give the same bits everywhere, also where
// subnormals are flushed. A dialect with instructions for them defines HAS_CONVERSIONS and brings its own.

enum { F32 = 0, F16 = 1, BF16 = 2 };

FN bool is_finite(float value) {
  return (float_to_bits(value) & 0x7f800000u) != 0x7f800000u;
}

FN float bfloat_to_float(uint bits) {
  return bits_to_float(bits << 16);
}

// Nearest, ties to even. A NaN stays one and becomes quiet.
FN uint float_to_bfloat(float value) {
  const uint bits = float_to_bits(value);
  const uint rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
  return (bits & 0x7fffffffu) > 0x7f800000u ? bits >> 16 | 0x40u : rounded;
}

#ifndef HAS_CONVERSIONS

FN float half_to_float(uint bits) {
  const uint sign = (bits & 0x8000u) << 16;
  const uint rest = bits & 0x7fffu;
  if (rest < 0x0400u) {
    return bits_to_float(float_to_bits(float(rest) * 5.9604644775390625e-8f) | sign);
  }
  const uint rebiased = (rest << 13) + (rest < 0x7c00u ? 0x38000000u : 0x70000000u);
  return bits_to_float(rebiased | sign);
}

// Nearest, ties to even; what rounds beyond 65504 becomes infinite.
FN uint float_to_half(float value) {
  const uint bits = float_to_bits(value);
  const uint sign = bits >> 16 & 0x8000u;
  const uint rest = bits & 0x7fffffffu;
  if (rest >= 0x47800000u) {
    return sign | (rest > 0x7f800000u ? 0x7e00u | rest >> 13 & 0x03ffu : 0x7c00u);
  }
  if (rest < 0x38800000u) {
    return sign | uint(nearest(bits_to_float(rest) * 16777216.0f));
  }
  return sign | (rest - 0x38000000u + 0x0fffu + (rest >> 13 & 1u)) >> 13;
}

// E4M3 without infinities (OCP OFP8): bias 7, largest 448. Nearest, ties to even, saturating.
FN uint float_to_e4m3(float value) {
  const uint bits = float_to_bits(value);
  const uint sign = bits >> 24 & 0x80u;
  const uint rest = bits & 0x7fffffffu;
  if (rest >= 0x43e00000u) {
    return sign | 0x7eu;
  }
  if (rest < 0x3c800000u) {
    return sign | uint(nearest(bits_to_float(rest) * 512.0f));
  }
  return sign | (rest - 0x3c000000u + 0x7ffffu + (rest >> 20 & 1u)) >> 20;
}

FN float e4m3_to_float(uint code) {
  const uint sign = (code & 0x80u) << 24;
  const uint rest = code & 0x7fu;
  const float size = rest < 8u ? float(rest) * 0.001953125f : bits_to_float((rest << 20) + 0x3c000000u);
  return bits_to_float(float_to_bits(size) | sign);
}

#endif
