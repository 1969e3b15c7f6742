// Measures GPU work at its first use, except during a graph capture.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "device/cuda/queue.h"

namespace cleave::kernels::gpu {

// Returns true if this stream currently measures its choices.
inline bool measures(const CudaQueue& queue) { return queue.measures && !queue.capturing(); }

// Minimum milliseconds of a few runs after a warm-up; infinite if `work` returns false. Waits for the stream.
float milliseconds_of(CudaQueue& queue, const std::function<bool()>& work);

// "NVIDIA H200, driver 13010, cuBLASLt 130100": the validity of a choice.
const std::string& place_of_choices(const CudaQueue& queue);

// Saves tensors and restores them, because measured work adds to them. The copies are in the libraries'
// scratch after the workspace of matrix products; nested measurements place theirs after those of the outer
// one.
class Untouched {
 public:
  Untouched(CudaQueue& queue, std::vector<Tensor> tensors);
  ~Untouched() { queue_.held -= bytes_; }
  Untouched(const Untouched&) = delete;
  Untouched& operator=(const Untouched&) = delete;
  // Bytes available for such copies.
  static int64_t room(const CudaQueue& queue) {
    return (queue.product_scratch().bytes() - kBehind - queue.held) / 256 * 256;
  }
  bool fits() const { return fits_; }  // false: not enough space, do not measure
  void restore() const;

  static constexpr int64_t kBehind = int64_t{128} << 20;

 private:
  CudaQueue& queue_;
  std::vector<Tensor> tensors_;
  std::byte* copies_ = nullptr;
  int64_t bytes_ = 0;
  bool fits_ = true;
};

}  // namespace cleave::kernels::gpu
