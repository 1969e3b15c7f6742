#include "tests/comm/collective_values.h"

namespace cleave::comm::test {
namespace {

// A value that depends on both arguments; sums of it are inexact in every float type.
double value(int rank, int64_t i) {
  return double((i * 7919 + rank * 104729) % 100'003) / 1e4 * ((i + rank) % 3 ? 1 : -0.37);
}

template <class T>
T make(double v) {
  if constexpr (std::is_same_v<T, fp16> || std::is_same_v<T, bf16>)
    return from_float<T>(float(v));
  else if constexpr (std::is_integral_v<T>)
    return T(int64_t(v * 1e8));
  else
    return T(v);
}

template <class Visit>
void with_type(DType dtype, Visit visit) {
  switch (dtype) {
    case DType::fp32:
      return visit(float{});
    case DType::fp64:
      return visit(double{});
    case DType::fp16:
      return visit(fp16{});
    case DType::bf16:
      return visit(bf16{});
    case DType::int32:
      return visit(int32_t{});
    case DType::int64:
      return visit(int64_t{});
    case DType::uint8:
      return visit(uint8_t{});
    case DType::uint16:
      return visit(uint16_t{});
    case DType::fp8_e4m3:  // bytes to a collective
    case DType::fp8_e5m2:
      return visit(uint8_t{});
  }
}

template <class T>
T add_in_order(int ranks, int64_t i) {
  if constexpr (std::is_same_v<T, fp16> || std::is_same_v<T, bf16>) {
    float sum = to_float(make<T>(value(0, i)));
    for (int r = 1; r < ranks; ++r) sum += to_float(make<T>(value(r, i)));
    return from_float<T>(sum);
  } else if constexpr (std::is_integral_v<T>) {
    uint64_t sum = 0;
    for (int r = 0; r < ranks; ++r) sum += uint64_t(make<T>(value(r, i)));
    return T(sum);
  } else {
    T sum = make<T>(value(0, i));
    for (int r = 1; r < ranks; ++r) sum += make<T>(value(r, i));
    return sum;
  }
}

// Computes in double precision, which holds all values of the suite except int64.
template <class T>
T largest(int ranks, int64_t i) {
  const auto number = [&](int r) {
    if constexpr (std::is_same_v<T, fp16> || std::is_same_v<T, bf16>)
      return double(to_float(make<T>(value(r, i))));
    else if constexpr (std::is_integral_v<T>)
      return int64_t(make<T>(value(r, i)));
    else
      return double(make<T>(value(r, i)));
  };
  int best = 0;
  for (int r = 1; r < ranks; ++r)
    if (number(r) > number(best)) best = r;
  return make<T>(value(best, i));
}

}  // namespace

Bytes input(DType dtype, int rank, int64_t numel, int64_t first) {
  Bytes bytes(size_t(numel * size_of(dtype)));
  with_type(dtype, [&](auto zero) {
    using T = decltype(zero);
    for (int64_t i = 0; i < numel; ++i) {
      const T v = make<T>(value(rank, first + i));
      std::memcpy(bytes.data() + size_t(i) * sizeof(T), &v, sizeof(T));
    }
  });
  return bytes;
}

Bytes expected_sum(DType dtype, int ranks, int64_t numel, int64_t first) {
  Bytes bytes(size_t(numel * size_of(dtype)));
  with_type(dtype, [&](auto zero) {
    using T = decltype(zero);
    for (int64_t i = 0; i < numel; ++i) {
      const T v = add_in_order<T>(ranks, first + i);
      std::memcpy(bytes.data() + size_t(i) * sizeof(T), &v, sizeof(T));
    }
  });
  return bytes;
}

Bytes expected_max(DType dtype, int ranks, int64_t numel, int64_t first) {
  Bytes bytes(size_t(numel * size_of(dtype)));
  with_type(dtype, [&](auto zero) {
    using T = decltype(zero);
    for (int64_t i = 0; i < numel; ++i) {
      const T v = largest<T>(ranks, first + i);
      std::memcpy(bytes.data() + size_t(i) * sizeof(T), &v, sizeof(T));
    }
  });
  return bytes;
}

Bytes expected_gather(DType dtype, int ranks, int64_t shard) {
  Bytes all;
  for (int r = 0; r < ranks; ++r) {
    const Bytes one = input(dtype, r, shard);
    all.insert(all.end(), one.begin(), one.end());
  }
  return all;
}

Tensor view(Bytes& bytes, DType dtype) {
  // data() of an empty vector may be null, but every tensor of a call should have an address.
  static std::byte nothing;
  return {bytes.empty() ? &nothing : bytes.data(), dtype, {int64_t(bytes.size()) / size_of(dtype)}};
}

void same(const Bytes& got, const Bytes& want, const std::string& what) {
  EXPECT_ON_RANK(got.size() == want.size(), "{}: {} bytes, wanted {}", what, got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i)
    EXPECT_ON_RANK(got[i] == want[i], "{}: byte {} of {} is {}, wanted {}", what, i, got.size(), int(got[i]),
                   int(want[i]));
}

}  // namespace cleave::comm::test
