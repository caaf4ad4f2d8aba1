// The shared dialect, for CUDA C++. Kernels are written once, in the words below; `metal.h` defines the same words.
//
// nvrtc fuses a product and a sum unless told otherwise, and mlx does not tell it: the rounding intrinsics are never
// fused. Subnormals are kept, because nvrtc's default is not to flush them.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#define FN static __device__ __forceinline__
#define RARE_FN static __device__ __noinline__
#define DEVICE
#define LOCAL
#define SHARED
#define SHARED_MEMORY __shared__
#define UNROLL _Pragma("unroll")
#define ROLLED _Pragma("unroll 1")
#define HAS_CONVERSIONS

using uint = unsigned int;
using ushort = unsigned short;
using uchar = unsigned char;
using place_t = unsigned long long;

FN float bits_to_float(uint bits) {
  return __uint_as_float(bits);
}

FN uint float_to_bits(float value) {
  return __float_as_uint(value);
}

// One IEEE operation each, rounded once.
FN float add(float a, float b) {
  return __fadd_rn(a, b);
}

FN float sub(float a, float b) {
  return __fsub_rn(a, b);
}

FN float mul(float a, float b) {
  return __fmul_rn(a, b);
}

FN float quotient(float a, float b) {
  return __fdiv_rn(a, b);
}

// a * b + c, rounded once.
FN float fused(float a, float b, float c) {
  return __fmaf_rn(a, b, c);
}

FN uint upper_product(uint a, uint b) {
  return __umulhi(a, b);
}

FN float nearest(float a) {
  return rintf(a);
}

FN float square_root(float a) {
  return __fsqrt_rn(a);
}

FN float least(float a, float b) {
  return fminf(a, b);
}

FN float most(float a, float b) {
  return fmaxf(a, b);
}

FN float magnitude(float a) {
  return fabsf(a);
}

// The 32 lanes of a warp. All of them must call these together.
FN float from_lane_xor(float value, uint mask) {
  return __shfl_xor_sync(0xffffffffu, value, mask);
}

FN uint from_lane_xor(uint value, uint mask) {
  return __shfl_xor_sync(0xffffffffu, value, mask);
}

FN float from_lane(float value, uint lane) {
  return __shfl_sync(0xffffffffu, value, lane);
}

FN bool any_of_lanes(bool value) {
  return __any_sync(0xffffffffu, value);
}

FN uint from_lane(uint value, uint lane) {
  return __shfl_sync(0xffffffffu, value, lane);
}

FN uint least_of_lanes(uint value) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
  for (uint mask = 1; mask < 32; mask *= 2) value = min(value, from_lane_xor(value, mask));
  return value;
#else
  return __reduce_min_sync(0xffffffffu, value);
#endif
}

FN void wait_for_lanes() {
  __syncwarp();
}

FN float half_to_float(uint bits) {
  return __half2float(__ushort_as_half((ushort)bits));
}

FN uint float_to_half(float value) {
  return __half_as_ushort(__float2half_rn(value));
}

// Two numbers at a time, the first in the low half of the word.
FN uint word_of(__half2 pair) {
  return *(const uint*)&pair;
}

FN __half2 pair_of(uint word) {
  return *(const __half2*)&word;
}

FN __nv_bfloat162 bfloats_of(uint word) {
  return *(const __nv_bfloat162*)&word;
}

FN uint word_of(__nv_bfloat162 pair) {
  return *(const uint*)&pair;
}

FN uint floats_to_halves(float first, float second) {
  return word_of(__floats2half2_rn(first, second));
}

FN uint floats_to_bfloats(float first, float second) {
  return word_of(__floats2bfloat162_rn(first, second));
}

// The smaller or larger of each two numbers; a NaN wins.
FN uint least_halves(uint a, uint b) {
  return word_of(__hmin2_nan(pair_of(a), pair_of(b)));
}

FN uint most_halves(uint a, uint b) {
  return word_of(__hmax2_nan(pair_of(a), pair_of(b)));
}

FN uint least_bfloats(uint a, uint b) {
  return word_of(__hmin2_nan(bfloats_of(a), bfloats_of(b)));
}

FN uint most_bfloats(uint a, uint b) {
  return word_of(__hmax2_nan(bfloats_of(a), bfloats_of(b)));
}

// Of integers below 1024: they become the low bits of 1024 + n.
FN uint halves_of_integers(uint pair) {
  return word_of(__hsub2(pair_of(pair | 0x64006400u), pair_of(0x64006400u)));
}

FN uint product_of_halves(uint a, uint b) {
  return word_of(__hmul2_rn(pair_of(a), pair_of(b)));
}

FN uint sum_of_halves(uint a, uint b) {
  return word_of(__hadd2_rn(pair_of(a), pair_of(b)));
}

FN uint floats_to_e4m3s(float first, float second) {
  return __nv_cvt_float2_to_fp8x2(make_float2(first, second), __NV_SATFINITE, __NV_E4M3);
}

FN uint floats_to_e5m2s(float first, float second) {
  return __nv_cvt_float2_to_fp8x2(make_float2(first, second), __NV_SATFINITE, __NV_E5M2);
}

FN uint e4m3s_to_halves(uint pair) {
  const __half2_raw halves = __nv_cvt_fp8x2_to_halfraw2((__nv_fp8x2_storage_t)pair, __NV_E4M3);
  return halves.x | (uint)halves.y << 16;
}

FN bool aligned(const void* place, uint bytes) {
  return ((place_t)place & (bytes - 1)) == 0;
}

// Whether the four functions below may be used at distances of whole octets from here.
FN bool may_load_16_bytes(const uchar* base) {
  return aligned(base, 16);
}

FN void load_8_halves(const ushort* from, uint* pairs) {
  const uint4 all = *(const uint4*)from;
  pairs[0] = all.x, pairs[1] = all.y, pairs[2] = all.z, pairs[3] = all.w;
}

FN void store_8_halves(ushort* to, const uint* pairs) {
  *(uint4*)to = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
}

FN void load_8_words(const uint* from, uint* words) {
  const uint4 low = *(const uint4*)from;
  const uint4 high = *(const uint4*)(from + 4);
  words[0] = low.x, words[1] = low.y, words[2] = low.z, words[3] = low.w;
  words[4] = high.x, words[5] = high.y, words[6] = high.z, words[7] = high.w;
}

FN void store_8_words(uint* to, const uint* words) {
  *(uint4*)to = make_uint4(words[0], words[1], words[2], words[3]);
  *(uint4*)(to + 4) = make_uint4(words[4], words[5], words[6], words[7]);
}

// At a multiple of 8 bytes.
FN void load_2_words(const uint* from, uint* words) {
  const uint2 both = *(const uint2*)from;
  words[0] = both.x, words[1] = both.y;
}

FN void store_2_words(uint* to, const uint* words) {
  *(uint2*)to = make_uint2(words[0], words[1]);
}

// At any alignment; where it happens to be that of the unit, in one access.
FN uint load_u16(const uchar* from) {
  if (aligned(from, 2)) return *(const ushort*)from;
  return (uint)from[0] | (uint)from[1] << 8;
}

FN uint load_u32(const uchar* from) {
  if (aligned(from, 4)) return *(const uint*)from;
  return load_u16(from) | load_u16(from + 2) << 16;
}

FN void store_u16(uchar* to, uint value) {
  if (aligned(to, 2)) {
    *(ushort*)to = (ushort)value;
    return;
  }
  to[0] = (uchar)value;
  to[1] = (uchar)(value >> 8);
}

FN void store_u32(uchar* to, uint value) {
  if (aligned(to, 4)) {
    *(uint*)to = value;
    return;
  }
  store_u16(to, value);
  store_u16(to + 2, value >> 16);
}

FN void load_u64(const uchar* from, uint* words) {
  if (aligned(from, 8)) {
    const uint2 both = *(const uint2*)from;
    words[0] = both.x, words[1] = both.y;
    return;
  }
  words[0] = load_u32(from);
  words[1] = load_u32(from + 4);
}

FN void store_u64(uchar* to, const uint* words) {
  if (aligned(to, 8)) {
    *(uint2*)to = make_uint2(words[0], words[1]);
    return;
  }
  store_u32(to, words[0]);
  store_u32(to + 4, words[1]);
}
