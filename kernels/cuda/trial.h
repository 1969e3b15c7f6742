// What a library computes in place of this folder's own kernels is tried once against them before it is used.
#pragma once
#include <functional>
#include <initializer_list>
#include <string>

#include "device/cuda/queue.h"
#include "device/tensor.h"

namespace cleave::kernels::gpu {

// Whether all of these begin at a multiple of 16 bytes.
bool all_aligned(std::initializer_list<Tensor> tensors);

// What a trial ends with: empty when the results agree, else why the own kernels stay.
using Verdict = std::string;

// Whether what goes by `name` may be used on the stream's GPU. `trial` runs on the stream when a process asks
// first and for the first time for that GPU; when it fails, one line on stderr says why. With the
// environment's `variable`=off the answer is no, without a trial.
bool proved(const std::string& name, const char* variable, Stream& stream,
            const std::function<Verdict()>& trial);

// Memory of a trial: the end of the stream's scratch, whose start the kernels on trial use.
class TrialSpace {
 public:
  explicit TrialSpace(Stream& stream);
  // False where the stream was lent too little; nothing may be taken then.
  bool enough() const { return begin_ != nullptr; }
  Tensor take(DType type, Shape shape);
  // Normal random values of that spread; others with every call.
  Tensor random(DType type, Shape shape, float spread = 1);

 private:
  static constexpr int64_t kForKernels = int64_t{8} << 20, kBytes = int64_t{48} << 20;

  Stream& stream_;
  std::byte* begin_ = nullptr;
  int64_t used_ = 0;
  uint64_t drawn_ = 0;
};

// Empty, or the first element at which `got` differs from `want` by more than `bound` times (1 + |want|).
// Both are fp32, or both of one 16-bit type. Waits for the stream.
Verdict difference(const char* what, const Tensor& got, const Tensor& want, double bound, Stream& stream);

}  // namespace cleave::kernels::gpu
