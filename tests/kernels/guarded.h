// Operands of kernel tests, placed between guard bands, with values that are exact in their type and readable
// as doubles for a plain oracle. In a test case of a KERNEL_SUITE they are on the case's device, and
// TestStream runs the kernels there.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "device/fp8.h"
#include "tests/kernels/test_device.h"

namespace cleave::kernels {

using Values = std::vector<double>;

inline Values random_values(int64_t numel, uint64_t seed, double scale = 1) {
  std::mt19937_64 engine(seed * 7919 + 17);
  std::normal_distribution<double> normal(0, scale);
  Values v(size_t(numel), 0.0);
  for (double& x : v) x = normal(engine);
  return v;
}

inline double rounded(double x, DType type) {
  switch (type) {
    case DType::fp32:
      return double(float(x));
    case DType::bf16:
      return double(to_float(from_float<bf16>(float(x))));
    case DType::fp16:
      return double(to_float(from_float<fp16>(float(x))));
    default:
      return x;
  }
}

// Half a unit in the last place of a stored value, relative.
inline double half_ulp(DType type) {
  switch (type) {
    case DType::bf16:
      return 0x1p-8;
    case DType::fp16:
      return 0x1p-11;
    case DType::fp64:
      return 0x1p-53;
    default:
      return 0x1p-24;
  }
}

class Guarded {
 public:
  Guarded() = default;
  Guarded(DType type, Shape shape)
      : bytes_(size_t(kGuard + shape.numel() * size_of(type) + kGuard), kPattern) {
    std::byte* base = bytes_.data();
    if (TestDevice* device = TestDevice::current()) {
      on_gpu_ = device->memory.allocate(MemoryKind::device, Category::staging, DType::uint8,
                                        {int64_t(bytes_.size())}, "operand");
      base = static_cast<std::byte*>(on_gpu_.tensor().raw());
    }
    tensor_ = Tensor(base + kGuard, type, shape);
  }
  Guarded(DType type, Shape shape, const Values& values) : Guarded(type, shape) { set(values); }
  Guarded(Guarded&&) = default;
  Guarded& operator=(Guarded&&) = default;

  // The operand with its current values.
  operator const Tensor&() const { return tensor(); }
  const Tensor& tensor() const {
    upload();
    return tensor_;
  }
  int64_t numel() const { return tensor_.numel(); }

  void set(const Values& values) {
    CHECK(int64_t(values.size()) == numel(), "{} values for {} elements", values.size(), numel());
    for (size_t i = 0; i < values.size(); ++i) put(i, values[i]);
  }
  void put(size_t i, double x) {
    download();
    changed_ = true;
    auto* p = bytes_.data() + kGuard + i * size_t(size_of(tensor_.dtype()));
    auto write = [&](auto v) { std::memcpy(p, &v, sizeof v); };
    switch (tensor_.dtype()) {
      case DType::fp32:
        return write(float(x));
      case DType::bf16:
        return write(from_float<bf16>(float(x)));
      case DType::fp16:
        return write(from_float<fp16>(float(x)));
      case DType::fp64:
        return write(x);
      case DType::int64:
        return write(int64_t(x));
      case DType::int32:
        return write(int32_t(x));
      case DType::uint16:
        return write(uint16_t(x));
      case DType::uint8:
        return write(uint8_t(x));
      case DType::fp8_e4m3:
      case DType::fp8_e5m2:
        return write(to_fp8(float(x), fp8_format(tensor_.dtype())));
    }
  }
  double at(size_t i) const {
    download();
    const auto* p = bytes_.data() + kGuard + i * size_t(size_of(tensor_.dtype()));
    auto read = [&](auto v) {
      std::memcpy(&v, p, sizeof v);
      return v;
    };
    switch (tensor_.dtype()) {
      case DType::fp32:
        return double(read(float{}));
      case DType::bf16:
        return double(to_float(read(bf16{})));
      case DType::fp16:
        return double(to_float(read(fp16{})));
      case DType::fp64:
        return read(double{});
      case DType::int64:
        return double(read(int64_t{}));
      case DType::int32:
        return double(read(int32_t{}));
      case DType::uint16:
        return double(read(uint16_t{}));
      case DType::uint8:
        return double(read(uint8_t{}));
      case DType::fp8_e4m3:
      case DType::fp8_e5m2:
        return double(fp8_values(tensor_.dtype())[read(uint8_t{})]);
    }
    return 0;
  }
  Values values() const {
    Values v(static_cast<size_t>(numel()));
    for (size_t i = 0; i < v.size(); ++i) v[i] = at(i);
    return v;
  }
  std::vector<std::byte> bits() const {
    download();
    const auto* p = bytes_.data() + kGuard;
    return {p, p + tensor_.bytes()};
  }
  // Returns true if nothing outside the elements was written.
  bool intact() const {
    download();
    for (int64_t i = 0; i < kGuard; ++i)
      if (bytes_[size_t(i)] != kPattern || bytes_[bytes_.size() - 1 - size_t(i)] != kPattern) return false;
    return true;
  }

 private:
  static constexpr int64_t kGuard = 128;
  static constexpr std::byte kPattern{0xa5};

  void move(const Tensor& to, const Tensor& from) const {
    TestDevice* device = TestDevice::current();
    copy(to, from, device->stream);
    device->stream.synchronize();
    seen_ = device->launches;
  }
  Tensor here() const { return {bytes_.data(), DType::uint8, {int64_t(bytes_.size())}, MemoryKind::host}; }
  void upload() const {
    if (on_gpu_.defined() && changed_) move(on_gpu_, here());
    changed_ = false;
  }
  void download() const {
    if (on_gpu_.defined() && !changed_ && seen_ != TestDevice::current()->launches) move(here(), on_gpu_);
  }

  mutable std::vector<std::byte> bytes_;  // the data on the CPU; on a GPU, a copy of the last known state
  mutable bool changed_ = true;           // bytes_ is newer than the GPU's
  mutable int64_t seen_ = 0;              // number of launches included in bytes_
  Buffer on_gpu_;
  Tensor tensor_;
};

// |got - want| <= relative |want| + absolute for every element, and intact guard bands.
inline void expect_near(const Guarded& got, const Values& want, double relative, double absolute,
                        const char* what) {
  EXPECT_TRUE(got.intact()) << what << ": guard band overwritten";
  ASSERT_EQ(size_t(got.numel()), want.size()) << what;
  for (size_t i = 0; i < want.size(); ++i) {
    const double bound = relative * std::fabs(want[i]) + absolute;
    if (!(std::fabs(got.at(i) - want[i]) <= bound)) {
      ADD_FAILURE() << what << "[" << i << "] is " << got.at(i) << ", wanted " << want[i] << " within "
                    << bound;
      return;
    }
  }
}

inline const DType kTrainingTypes[] = {DType::fp32, DType::bf16, DType::fp16};

}  // namespace cleave::kernels
