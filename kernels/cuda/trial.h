// Compares library kernels with this folder's own kernels once before their use.
#pragma once
#include <functional>
#include <initializer_list>
#include <string>

#include "device/cuda/queue.h"
#include "device/tensor.h"

namespace cleave::kernels::gpu {

// Returns true if all tensors are aligned to 16 bytes.
bool all_aligned(std::initializer_list<Tensor> tensors);

// Result of a trial: empty if the results agree, else the reason to use the own kernels.
using Verdict = std::string;

// Returns true if the implementation `name` may be used on the stream's GPU. The first call of a process per
// GPU runs `trial` on the stream; a failure prints its reason on one line of stderr. Returns false without a
// trial if the environment has `variable`=off.
bool proved(const std::string& name, const char* variable, Stream& stream,
            const std::function<Verdict()>& trial);

// Prints that line.
void report_unused(const std::string& name, const char* variable, int device, const Verdict& verdict);

// Memory of a trial: the end of the stream's scratch; the tested kernels use its start.
class TrialSpace {
 public:
  static constexpr int64_t kBytes = int64_t{48} << 20;

  explicit TrialSpace(Stream& stream);
  // False if the stream's scratch is too small; take nothing then.
  bool enough() const { return begin_ != nullptr; }
  Tensor take(DType type, Shape shape);
  // Normal random values with this standard deviation; each call returns others.
  Tensor random(DType type, Shape shape, float spread = 1);

 private:
  static constexpr int64_t kForKernels = int64_t{8} << 20;

  Stream& stream_;
  std::byte* begin_ = nullptr;
  int64_t used_ = 0;
  uint64_t drawn_ = 0;
};

// Empty, or the first element where `got` differs from `want` by more than `bound` times (1 + |want|). Both
// are fp32, or both of one 16-bit type. Waits for the stream.
Verdict difference(const char* what, const Tensor& got, const Tensor& want, double bound, Stream& stream);

}  // namespace cleave::kernels::gpu
