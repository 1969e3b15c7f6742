// How long work takes on a GPU, measured where it is used for the first time. Not while it is captured.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "device/cuda/queue.h"

namespace cleave::kernels::gpu {

// Whether this stream measures now what it has a choice of.
inline bool measures(const CudaQueue& queue) { return queue.measures && !queue.capturing(); }

// The least milliseconds of a few times, after a first one; infinite when `work` says that it cannot. Waits
// for the stream.
float milliseconds_of(CudaQueue& queue, const std::function<bool()>& work);

// "NVIDIA H200, cuBLASLt 130100": what a choice is good for.
const std::string& place_of_choices(const CudaQueue& queue);

// Gives tensors back what they held, as work that is measured adds to them. Their copies lie in the
// libraries' scratch behind what matrix products use, one measurement's inside of another behind its own.
class Untouched {
 public:
  Untouched(CudaQueue& queue, std::vector<Tensor> tensors);
  ~Untouched() { queue_.held -= bytes_; }
  Untouched(const Untouched&) = delete;
  Untouched& operator=(const Untouched&) = delete;
  // Bytes that such copies have.
  static int64_t room(const CudaQueue& queue) {
    return (queue.product_scratch().bytes() - kBehind - queue.held) / 256 * 256;
  }
  bool fits() const { return fits_; }  // false: there is no room, and nothing may be measured
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
