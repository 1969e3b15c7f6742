// Term of an element in a Checksum, for the bodies of all devices: invertible for each position, so another
// element always has another term. In 32 bits, so that CPUs compute several at a time; an element of 64 bits
// is two.
#pragma once
#include <cstdint>

#if defined(__CUDACC__)
#define CLEAVE_HOST_DEVICE __host__ __device__
#else
#define CLEAVE_HOST_DEVICE
#endif

namespace cleave::kernels {

CLEAVE_HOST_DEVICE inline uint32_t checksum_term(uint32_t position, uint32_t bits) {
  uint32_t z = bits + (position + 1) * 0x9e3779b9u;
  z = (z ^ (z >> 16)) * 0x85ebca6bu;
  return z ^ (z >> 13);
}

}  // namespace cleave::kernels

#undef CLEAVE_HOST_DEVICE
