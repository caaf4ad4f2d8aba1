// Just enough of Metal's types and functions to compile the kernels as C++ and run them on lanes_machine.h.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "lanes_machine.h"

#define device
#define constant
#define thread
#define threadgroup
// Shared memory of a group: one group runs at a time, so one copy will do.
#define SHARED_MEMORY static

using uchar = unsigned char;
using ushort = unsigned short;
using uint = unsigned int;
using ulong = uint64_t;
using float16_t = uint16_t;
using bfloat16_t = uint16_t;

template <typename T>
struct Vector3 {
  T x, y, z;
};

template <typename T>
struct Vector4 {
  T x, y, z, w;
  Vector4(T x, T y, T z, T w) : x(x), y(y), z(z), w(w) {}
};

// A packed vector asks for the alignment of one component and converts to and from the plain one.
template <typename T>
struct PackedVector4 {
  T x, y, z, w;
  operator Vector4<T>() const {
    return Vector4<T>(x, y, z, w);
  }
  void operator=(Vector4<T> all) {
    x = all.x, y = all.y, z = all.z, w = all.w;
  }
};

using uint3 = Vector3<uint>;
using uchar4 = Vector4<uchar>;
using ushort4 = Vector4<ushort>;
using uint4 = Vector4<uint>;
using packed_uchar4 = PackedVector4<uchar>;
using packed_ushort4 = PackedVector4<ushort>;
using packed_uint4 = PackedVector4<uint>;

template <typename To, typename From>
inline To as_type(From from) {
  static_assert(sizeof(To) == sizeof(From), "as_type keeps the size");
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

namespace metal {

enum class mem_flags { mem_none, mem_threadgroup };

inline float rint(float value) {
  return std::nearbyintf(value);
}
namespace precise {
inline float sqrt(float value) {
  return std::sqrt(value);
}
}  // namespace precise
inline float fabs(float value) {
  return std::fabs(value);
}
inline float fma(float a, float b, float c) {
  return std::fma(a, b, c);
}
inline uint mulhi(uint a, uint b) {
  return uint(uint64_t(a) * b >> 32);
}
inline float fmin(float a, float b) {
  return std::fmin(a, b);
}
inline float fmax(float a, float b) {
  return std::fmax(a, b);
}

template <typename T>
inline T simd_shuffle_xor(T value, ushort mask) {
  return lanes::exchange(value, lanes::here().lane ^ mask);
}
template <typename T>
inline T simd_shuffle(T value, ushort lane) {
  return lanes::exchange(value, lane);
}
inline bool simd_any(bool value) {
  return lanes::least(!value) == 0;
}
inline uint simd_min(uint value) {
  return lanes::least(value);
}
inline void simdgroup_barrier(mem_flags) {
  lanes::meet();
}

}  // namespace metal
