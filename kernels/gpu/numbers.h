// Number formats in the shared dialect. A 16-bit number travels in the low half of a `uint`.
//
// The conversions use integers and exact float steps only, so they give the same bits everywhere, also where
// subnormals are flushed. A dialect with instructions for some of them defines HAS_CONVERSIONS and brings its own.

enum { F32 = 0, F16 = 1, BF16 = 2 };

#define INFINITE 0x7f800000u
#define NONE 0xffffffffu

FN uint magnitude_bits(float value) {
  return float_to_bits(value) & 0x7fffffffu;
}

// Zeros and float subnormals become +0. No fp16 number is a float subnormal.
template <int ELEMENT>
FN float flush(float value) {
  if (ELEMENT == F16) return add(value, 0.0f);
  return magnitude(value) < 1.17549435e-38f ? 0.0f : value;
}

// A finite value beyond the limit becomes the limit. By bits, since a comparison may flush its operands.
FN float saturated(float value, uint limit_bits) {
  const uint size = magnitude_bits(value);
  const uint sign = float_to_bits(value) & 0x80000000u;
  return size > limit_bits && size < INFINITE ? bits_to_float(sign | limit_bits) : value;
}

FN float bfloat_to_float(uint bits) {
  return bits_to_float(bits << 16);
}

// Nearest, ties to even. A NaN stays one and becomes quiet.
FN uint float_to_bfloat(float value) {
  const uint bits = float_to_bits(value);
  const uint rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
  return magnitude_bits(value) > INFINITE ? (bits >> 16 | 0x40u) : rounded;
}

// Exact. A NaN stays one and becomes quiet.
FN float half_to_float_by_parts(uint bits) {
  const uint sign = (bits & 0x8000u) << 16;
  const uint rest = bits & 0x7fffu;
  if (rest < 0x0400u) return bits_to_float(float_to_bits(float(rest) * 5.9604644775390625e-8f) | sign);
  if (rest < 0x7c00u) return bits_to_float(((rest << 13) + 0x38000000u) | sign);
  return bits_to_float(INFINITE | (rest & 0x03ffu) << 13 | (rest > 0x7c00u ? 0x00400000u : 0u) | sign);
}

// Nearest, ties to even; what rounds beyond 65504 becomes infinite. A NaN stays one and becomes quiet.
FN uint float_to_half_by_parts(float value) {
  const uint sign = float_to_bits(value) >> 16 & 0x8000u;
  const uint rest = magnitude_bits(value);
  if (rest > INFINITE) return sign | 0x7e00u | (rest >> 13 & 0x03ffu);
  if (rest >= 0x47800000u) return sign | 0x7c00u;
  if (rest < 0x38800000u) return sign | uint(nearest(bits_to_float(rest) * 16777216.0f));
  return sign | (rest - 0x38000000u + 0x0fffu + (rest >> 13 & 1u)) >> 13;
}

#ifndef HAS_CONVERSIONS

// What these make of a NaN is only some NaN.
FN float half_to_float(uint bits) {
  return half_to_float_by_parts(bits);
}

FN uint float_to_half(float value) {
  return float_to_half_by_parts(value);
}

// Two numbers at a time, the first in the low half of the word.
FN uint floats_to_halves(float first, float second) {
  return float_to_half(first) | float_to_half(second) << 16;
}

FN uint floats_to_bfloats(float first, float second) {
  return float_to_bfloat(first) | float_to_bfloat(second) << 16;
}

// A key that orders numbers of 16 bits by size; NaNs are beyond the infinities.
FN uint ordered(uint bits) {
  return (bits & 0x8000u) != 0u ? 0xffffu - bits : bits | 0x8000u;
}

FN bool is_less(uint a, uint b) {
  return ordered(a) < ordered(b);
}

// The smaller or larger of each two numbers; a NaN is beyond the infinity of its sign.
FN uint least_halves(uint a, uint b) {
  return (is_less(a & 0xffffu, b & 0xffffu) ? a & 0xffffu : b & 0xffffu) |
         (is_less(a >> 16, b >> 16) ? a & 0xffff0000u : b & 0xffff0000u);
}

FN uint most_halves(uint a, uint b) {
  return (is_less(a & 0xffffu, b & 0xffffu) ? b & 0xffffu : a & 0xffffu) |
         (is_less(a >> 16, b >> 16) ? b & 0xffff0000u : a & 0xffff0000u);
}

FN uint least_bfloats(uint a, uint b) {
  return least_halves(a, b);
}

FN uint most_bfloats(uint a, uint b) {
  return most_halves(a, b);
}

FN uint halves_of_integers(uint pair) {
  return floats_to_halves(float(pair & 0xffffu), float(pair >> 16));
}

FN uint product_of_halves(uint a, uint b) {
  return floats_to_halves(mul(half_to_float(a & 0xffffu), half_to_float(b & 0xffffu)),
                          mul(half_to_float(a >> 16), half_to_float(b >> 16)));
}

FN uint sum_of_halves(uint a, uint b) {
  return floats_to_halves(add(half_to_float(a & 0xffffu), half_to_float(b & 0xffffu)),
                          add(half_to_float(a >> 16), half_to_float(b >> 16)));
}

// E4M3 without infinities (OCP OFP8): bias 7, largest 448. Nearest, ties to even, saturating.
FN uint float_to_e4m3(float value) {
  const uint sign = float_to_bits(value) >> 24 & 0x80u;
  const uint rest = magnitude_bits(value);
  if (rest >= 0x43e00000u) return sign | 0x7eu;
  if (rest < 0x3c800000u) return sign | uint(nearest(bits_to_float(rest) * 512.0f));
  return sign | (rest - 0x3c000000u + 0x7ffffu + (rest >> 20 & 1u)) >> 20;
}

FN uint e4m3_to_half(uint code) {
  const uint sign = (code & 0x80u) << 8;
  const uint rest = code & 0x7fu;
  if (rest == 0x7fu) return sign | 0x7e00u;
  if (rest >= 8u) return sign | ((rest << 7) + 0x2000u);
  return sign | float_to_half(float(rest) * 0.001953125f);
}

// E5M2: fp16 with a shorter mantissa. Nearest, ties to even, saturating at 57344.
FN uint float_to_e5m2(float value) {
  const uint sign = float_to_bits(value) >> 24 & 0x80u;
  const uint rest = magnitude_bits(value);
  if (rest >= 0x47600000u) return sign | 0x7bu;
  if (rest < 0x38800000u) return sign | uint(nearest(bits_to_float(rest) * 65536.0f));
  return sign | (rest - 0x38000000u + 0xfffffu + (rest >> 21 & 1u)) >> 21;
}

FN uint floats_to_e5m2s(float first, float second) {
  return float_to_e5m2(first) | float_to_e5m2(second) << 8;
}

FN uint floats_to_e4m3s(float first, float second) {
  return float_to_e4m3(first) | float_to_e4m3(second) << 8;
}

FN uint e4m3s_to_halves(uint pair) {
  return e4m3_to_half(pair & 0xffu) | e4m3_to_half(pair >> 8 & 0xffu) << 16;
}

#endif

// The upper bytes of two fp16 numbers.
FN uint e5m2s_to_halves(uint pair) {
  return (pair & 0xffu) << 8 | (pair & 0xff00u) << 16;
}
