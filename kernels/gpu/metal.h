// The shared dialect, for Metal. Kernels are written once, in the words below; `cuda.h` defines the same words.
//
// Metal may fuse a product and a sum, and may flush float subnormals to zero. The first is switched off here; the
// second cannot be, so no kernel may let a result depend on a float subnormal unless docs/kernels.md says so.
#pragma METAL fp contract(off)

#define FN inline
#define RARE_FN inline
#define DEVICE device
#define LOCAL thread
#define SHARED threadgroup
#ifndef SHARED_MEMORY
#define SHARED_MEMORY threadgroup
#endif
#define UNROLL _Pragma("clang loop unroll(full)")
#define ROLLED _Pragma("clang loop unroll(disable)")

using place_t = ulong;

FN float bits_to_float(uint bits) {
  return as_type<float>(bits);
}

FN uint float_to_bits(float value) {
  return as_type<uint>(value);
}

// One IEEE operation each, rounded once.
FN float add(float a, float b) {
  return a + b;
}

FN float sub(float a, float b) {
  return a - b;
}

FN float mul(float a, float b) {
  return a * b;
}

FN float quotient(float a, float b) {
  return a / b;
}

// a * b + c, rounded once.
FN float fused(float a, float b, float c) {
  return metal::fma(a, b, c);
}

FN uint upper_product(uint a, uint b) {
  return metal::mulhi(a, b);
}

FN float nearest(float a) {
  return metal::rint(a);
}

FN float square_root(float a) {
  return metal::precise::sqrt(a);
}

FN float least(float a, float b) {
  return metal::fmin(a, b);
}

FN float most(float a, float b) {
  return metal::fmax(a, b);
}

FN float magnitude(float a) {
  return metal::fabs(a);
}

// The lanes of a SIMD group, 32 on every Apple GPU. All 32 must call these together.
FN float from_lane_xor(float value, uint mask) {
  return metal::simd_shuffle_xor(value, ushort(mask));
}

FN uint from_lane_xor(uint value, uint mask) {
  return metal::simd_shuffle_xor(value, ushort(mask));
}

FN float from_lane(float value, uint lane) {
  return metal::simd_shuffle(value, ushort(lane));
}

FN bool any_of_lanes(bool value) {
  return metal::simd_any(value);
}

FN uint from_lane(uint value, uint lane) {
  return metal::simd_shuffle(value, ushort(lane));
}

FN uint least_of_lanes(uint value) {
  return metal::simd_min(value);
}

FN void wait_for_lanes() {
  metal::simdgroup_barrier(metal::mem_flags::mem_threadgroup);
}

// The packed vectors below may lie at any element.
FN bool may_load_16_bytes(const DEVICE uchar*) {
  return true;
}

// Memory at the alignment of the named unit: the packed vector types ask for no more than that of one component.
FN void load_8_halves(const DEVICE ushort* from, LOCAL uint* pairs) {
  const ushort4 low = *(const DEVICE packed_ushort4*)from;
  const ushort4 high = *(const DEVICE packed_ushort4*)(from + 4);
  pairs[0] = uint(low.x) | uint(low.y) << 16;
  pairs[1] = uint(low.z) | uint(low.w) << 16;
  pairs[2] = uint(high.x) | uint(high.y) << 16;
  pairs[3] = uint(high.z) | uint(high.w) << 16;
}

FN void store_8_halves(DEVICE ushort* to, const LOCAL uint* pairs) {
  *(DEVICE packed_ushort4*)to =
      ushort4(ushort(pairs[0]), ushort(pairs[0] >> 16), ushort(pairs[1]), ushort(pairs[1] >> 16));
  *(DEVICE packed_ushort4*)(to + 4) =
      ushort4(ushort(pairs[2]), ushort(pairs[2] >> 16), ushort(pairs[3]), ushort(pairs[3] >> 16));
}

FN void load_8_words(const DEVICE uint* from, LOCAL uint* words) {
  const uint4 low = *(const DEVICE packed_uint4*)from;
  const uint4 high = *(const DEVICE packed_uint4*)(from + 4);
  words[0] = low.x;
  words[1] = low.y;
  words[2] = low.z;
  words[3] = low.w;
  words[4] = high.x;
  words[5] = high.y;
  words[6] = high.z;
  words[7] = high.w;
}

FN void store_8_words(DEVICE uint* to, const LOCAL uint* words) {
  *(DEVICE packed_uint4*)to = uint4(words[0], words[1], words[2], words[3]);
  *(DEVICE packed_uint4*)(to + 4) = uint4(words[4], words[5], words[6], words[7]);
}

FN void load_2_words(const DEVICE uint* from, LOCAL uint* words) {
  words[0] = from[0];
  words[1] = from[1];
}

FN void store_2_words(DEVICE uint* to, const LOCAL uint* words) {
  to[0] = words[0];
  to[1] = words[1];
}

FN uint load_u16(const DEVICE uchar* from) {
  return uint(from[0]) | uint(from[1]) << 8;
}

FN uint load_u32(const DEVICE uchar* from) {
  const uchar4 bytes = *(const DEVICE packed_uchar4*)from;
  return uint(bytes.x) | uint(bytes.y) << 8 | uint(bytes.z) << 16 | uint(bytes.w) << 24;
}

FN void store_u16(DEVICE uchar* to, uint value) {
  to[0] = uchar(value);
  to[1] = uchar(value >> 8);
}

FN void store_u32(DEVICE uchar* to, uint value) {
  *(DEVICE packed_uchar4*)to = uchar4(uchar(value), uchar(value >> 8), uchar(value >> 16), uchar(value >> 24));
}

FN void load_u64(const DEVICE uchar* from, LOCAL uint* words) {
  words[0] = load_u32(from);
  words[1] = load_u32(from + 4);
}

FN void store_u64(DEVICE uchar* to, const LOCAL uint* words) {
  store_u32(to, words[0]);
  store_u32(to + 4, words[1]);
}
