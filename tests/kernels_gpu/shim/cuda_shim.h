// Just enough of CUDA C++ to compile the kernels as C++ and run them on lanes_machine.h.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "lanes_machine.h"

#define __global__
#define __device__
#define __forceinline__ inline
#define __noinline__
#define __grid_constant__
#define __shared__ static

struct Dim3 {
  unsigned x;
};
#define threadIdx (Dim3{lanes::here().in_group})
#define blockIdx (Dim3{lanes::here().group})
#define blockDim (Dim3{lanes::here().group_size})
#define gridDim (Dim3{lanes::here().threads / lanes::here().group_size})

// As mlx hands them over, by value.
struct Shape {
  int32_t at[10];
  int32_t operator[](int i) const {
    return at[i];
  }
};
struct Strides {
  int64_t at[10];
  int64_t operator[](int i) const {
    return at[i];
  }
};

struct uint2 {
  unsigned x, y;
};
struct uint4 {
  unsigned x, y, z, w;
};
inline uint2 make_uint2(unsigned x, unsigned y) {
  return {x, y};
}
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) {
  return {x, y, z, w};
}

struct float2 {
  float x, y;
};
inline float2 make_float2(float x, float y) {
  return {x, y};
}

struct __half_raw {
  unsigned short x;
};
struct __half2_raw {
  unsigned short x, y;
};
struct __half {
  unsigned short x;
  __half() = default;
  __half(__half_raw raw) : x(raw.x) {}
};
struct __half2 {
  __half x, y;
};
struct __nv_bfloat16 {
  unsigned short x;
};
struct __nv_bfloat162 {
  __nv_bfloat16 x, y;
};

template <typename To, typename From>
inline To bit_copy(From from) {
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

inline float __uint_as_float(unsigned bits) {
  return bit_copy<float>(bits);
}
inline unsigned __float_as_uint(float value) {
  return bit_copy<unsigned>(value);
}
inline float __fadd_rn(float a, float b) {
  return a + b;
}
inline float __fsub_rn(float a, float b) {
  return a - b;
}
inline float __fmul_rn(float a, float b) {
  return a * b;
}
inline float __fdiv_rn(float a, float b) {
  return a / b;
}

inline float __fmaf_rn(float a, float b, float c) {
  return std::fma(a, b, c);
}
inline unsigned __umulhi(unsigned a, unsigned b) {
  return unsigned(uint64_t(a) * b >> 32);
}

inline float __fsqrt_rn(float a) {
  return std::sqrt(a);
}

inline __half __ushort_as_half(unsigned short bits) {
  return __half(__half_raw{bits});
}
inline unsigned short __half_as_ushort(__half value) {
  return value.x;
}
inline float __half2float(__half value) {
  return (float)bit_copy<_Float16>(value.x);
}
inline __half __float2half_rn(float value) {
  return __ushort_as_half(bit_copy<unsigned short>((_Float16)value));
}

// A product or sum of halves is exact, or rounded harmlessly, in double; __hsub2 is only asked for exact differences.
inline __half half_of(double value) {
  return __ushort_as_half(bit_copy<unsigned short>((_Float16)value));
}
inline double number(__half value) {
  return __half2float(value);
}
inline __half2 __floats2half2_rn(float first, float second) {
  return {__float2half_rn(first), __float2half_rn(second)};
}
inline __half2 __hmul2_rn(__half2 a, __half2 b) {
  return {half_of(number(a.x) * number(b.x)), half_of(number(a.y) * number(b.y))};
}
inline __half2 __hadd2_rn(__half2 a, __half2 b) {
  return {half_of(number(a.x) + number(b.x)), half_of(number(a.y) + number(b.y))};
}
inline __half2 __hsub2(__half2 a, __half2 b) {
  return {half_of(number(a.x) - number(b.x)), half_of(number(a.y) - number(b.y))};
}

inline __nv_bfloat16 bfloat_of(float value) {
  const unsigned bits = __float_as_uint(value);
  if (value != value) return {0x7fff};
  unsigned top = bits >> 16;
  const unsigned below = bits & 0xffff;
  if (below > 0x8000 || (below == 0x8000 && top % 2 == 1)) top++;
  return {(unsigned short)top};
}
inline __nv_bfloat162 __floats2bfloat162_rn(float first, float second) {
  return {bfloat_of(first), bfloat_of(second)};
}

inline double number(__nv_bfloat16 value) {
  return __uint_as_float((unsigned)value.x << 16);
}

// Minus zero is less than zero, and a NaN wins.
template <typename T>
inline bool comes_first(T a, T b) {
  return number(a) < number(b) || (number(a) == number(b) && a.x > b.x) || number(a) != number(a);
}
template <typename T>
inline T least_or_nan(T a, T b) {
  return comes_first(a, b) ? a : b;
}
template <typename T>
inline T most_or_nan(T a, T b) {
  return number(a) != number(a) || (number(b) == number(b) && comes_first(b, a)) ? a : b;
}
template <typename Pair>
inline Pair __hmin2_nan(Pair a, Pair b) {
  return {least_or_nan(a.x, b.x), least_or_nan(a.y, b.y)};
}
template <typename Pair>
inline Pair __hmax2_nan(Pair a, Pair b) {
  return {most_or_nan(a.x, b.x), most_or_nan(a.y, b.y)};
}

enum { __NV_SATFINITE };
enum { __NV_E4M3, __NV_E5M2 };
using __nv_fp8x2_storage_t = unsigned short;

inline float fp8_size(unsigned code, int kind) {
  if (kind == __NV_E5M2) return __half2float(__ushort_as_half((unsigned short)(code << 8)));
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  return exponent ? std::ldexp(1.0f + mantissa / 8.0f, exponent - 7) : std::ldexp(mantissa / 8.0f, -6);
}

inline unsigned short half_of_e4m3(unsigned code) {
  if ((code & 0x7f) == 0x7f) return 0x7fff;
  const float size = fp8_size(code & 0x7f, __NV_E4M3);
  return __float2half_rn(code & 0x80 ? -size : size).x;
}

inline __half2_raw __nv_cvt_fp8x2_to_halfraw2(unsigned short codes, int) {
  return {half_of_e4m3(codes & 0xff), half_of_e4m3(codes >> 8)};
}

// By search, so that it owes nothing to the arithmetic under test.
inline unsigned fp8_of_float(float value, int kind) {
  const unsigned sign = std::signbit(value) ? 0x80 : 0;
  const double size = std::fabs(value);
  unsigned best = 0;
  for (unsigned code = 1; code <= (kind == __NV_E5M2 ? 0x7bu : 0x7eu); ++code) {
    const double gain = std::fabs(size - fp8_size(best, kind)) - std::fabs(size - fp8_size(code, kind));
    if (gain > 0 || (gain == 0 && code % 2 == 0)) best = code;
  }
  return sign | best;
}

inline unsigned short __nv_cvt_float2_to_fp8x2(float2 values, int, int kind) {
  return (unsigned short)(fp8_of_float(values.x, kind) | fp8_of_float(values.y, kind) << 8);
}

template <typename T>
inline T __shfl_xor_sync(unsigned, T value, unsigned mask) {
  return lanes::exchange(value, lanes::here().lane ^ mask);
}
template <typename T>
inline T __shfl_sync(unsigned, T value, unsigned lane) {
  return lanes::exchange(value, lane);
}
inline int __any_sync(unsigned, bool value) {
  return lanes::least(!value) == 0;
}
inline unsigned __reduce_min_sync(unsigned, unsigned value) {
  return lanes::least(value);
}
inline void __syncwarp() {
  lanes::meet();
}
