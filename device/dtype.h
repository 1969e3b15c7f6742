// Element types and their conversions. 16-bit floats are storage types: the CPU computes in float, and a
// conversion rounds to nearest, ties to even.
#pragma once
#include <immintrin.h>

#include <bit>
#include <cstdint>
#include <string_view>

#include "core/error.h"

namespace cleave {

enum class DType : uint8_t { fp32, fp16, bf16, fp64, int64, int32, uint16, uint8, fp8_e4m3, fp8_e5m2 };

constexpr int64_t size_of(DType type) {
  switch (type) {
    case DType::fp64:
    case DType::int64:
      return 8;
    case DType::fp32:
    case DType::int32:
      return 4;
    case DType::fp16:
    case DType::bf16:
    case DType::uint16:
      return 2;
    case DType::uint8:
    case DType::fp8_e4m3:
    case DType::fp8_e5m2:
      return 1;
  }
  return 0;
}

constexpr bool is_float(DType t) {
  return t == DType::fp32 || t == DType::fp16 || t == DType::bf16 || t == DType::fp64;
}

constexpr std::string_view name_of(DType type) {
  constexpr std::string_view names[] = {"fp32",  "fp16",   "bf16",  "fp64",     "int64",
                                        "int32", "uint16", "uint8", "fp8_e4m3", "fp8_e5m2"};
  return names[size_t(type)];
}

struct bf16 {
  uint16_t bits = 0;
};
struct fp16 {
  uint16_t bits = 0;
};

inline float to_float(float x) { return x; }
inline float to_float(bf16 x) { return std::bit_cast<float>(uint32_t(x.bits) << 16); }
inline float to_float(fp16 x) { return _cvtsh_ss(x.bits); }

template <class T>
T from_float(float x) = delete;
template <>
inline float from_float<float>(float x) {
  return x;
}
template <>
inline bf16 from_float<bf16>(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return {uint16_t((u >> 16) | 0x40u)};  // keep NaN a NaN
  return {uint16_t((u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
}
template <>
inline fp16 from_float<fp16>(float x) {
  return {uint16_t(_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC))};
}

template <class T>
constexpr DType dtype_of();
template <>
constexpr DType dtype_of<float>() {
  return DType::fp32;
}
template <>
constexpr DType dtype_of<double>() {
  return DType::fp64;
}
template <>
constexpr DType dtype_of<fp16>() {
  return DType::fp16;
}
template <>
constexpr DType dtype_of<bf16>() {
  return DType::bf16;
}
template <>
constexpr DType dtype_of<int64_t>() {
  return DType::int64;
}
template <>
constexpr DType dtype_of<int32_t>() {
  return DType::int32;
}
template <>
constexpr DType dtype_of<uint16_t>() {
  return DType::uint16;
}
template <>
constexpr DType dtype_of<uint8_t>() {
  return DType::uint8;
}

// Calls body with a zero of the C++ type of a 16- or 32-bit float type: with_float(t, [&](auto zero) {...}).
template <class Body>
decltype(auto) with_float(DType type, Body&& body) {
  switch (type) {
    case DType::fp32:
      return body(float{});
    case DType::fp16:
      return body(fp16{});
    case DType::bf16:
      return body(bf16{});
    default:
      fail(Exit::internal, "{} is not a training float type (fp32, fp16 or bf16)", name_of(type));
  }
}

}  // namespace cleave
