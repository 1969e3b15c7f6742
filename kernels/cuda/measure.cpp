#include "kernels/cuda/measure.h"

#include <cmath>
#include <map>
#include <memory>
#include <type_traits>

#include "device/cuda/check.h"
#include "kernels/cuda/cublaslt.h"

namespace cleave::kernels::gpu {
namespace {

constexpr int kTimes = 3;

struct Destroy {
  void operator()(cudaEvent_t event) const { cudaEventDestroy(event); }
};
using OwnedEvent = std::unique_ptr<std::remove_pointer_t<cudaEvent_t>, Destroy>;

OwnedEvent event(int device) {
  cudaEvent_t made = nullptr;
  cuda_check(cudaEventCreate(&made), "cudaEventCreate", device);
  return OwnedEvent(made);
}

}  // namespace

float milliseconds_of(CudaQueue& queue, const std::function<bool()>& work) {
  const int device = queue.device();
  const cudaStream_t stream = queue.use();
  const OwnedEvent begin = event(device), end = event(device);
  if (!work()) return INFINITY;
  float best = INFINITY;
  for (int i = 0; i < kTimes; ++i) {
    cuda_check(cudaEventRecord(begin.get(), stream), "cudaEventRecord", device);
    if (!work()) return INFINITY;
    cuda_check(cudaEventRecord(end.get(), stream), "cudaEventRecord", device);
    cuda_check(cudaEventSynchronize(end.get()), "cudaEventSynchronize", device);
    float ms = 0;
    cuda_check(cudaEventElapsedTime(&ms, begin.get(), end.get()), "cudaEventElapsedTime", device);
    best = std::min(best, ms);
  }
  return best;
}

const std::string& place_of_choices(const CudaQueue& queue) {
  static std::mutex mutex;
  static std::map<int, std::string> known;
  const std::lock_guard lock(mutex);
  std::string& text = known[queue.device()];
  if (text.empty()) {
    cudaDeviceProp gpu;
    cuda_check(cudaGetDeviceProperties(&gpu, queue.device()), "cudaGetDeviceProperties", queue.device());
    int driver = 0;
    cuda_check(cudaDriverGetVersion(&driver), "cudaDriverGetVersion", queue.device());
    text = fmt::format("{}, driver {}, cuBLASLt {}", gpu.name, driver, cublaslt().get_version());
  }
  return text;
}

Untouched::Untouched(CudaQueue& queue, std::vector<Tensor> tensors)
    : queue_(queue), tensors_(std::move(tensors)) {
  int64_t bytes = 0;
  for (const Tensor& t : tensors_) bytes += round_up(t.bytes(), 256);
  const Tensor scratch = queue.product_scratch();
  fits_ = bytes == 0 || bytes <= room(queue);
  if (!fits_ || bytes == 0) return;
  copies_ = static_cast<std::byte*>(scratch.raw()) + kBehind + queue.held;
  bytes_ = bytes, queue.held += bytes;
  std::byte* to = copies_;
  for (const Tensor& t : tensors_) queue.copy(to, t.raw(), t.bytes()), to += round_up(t.bytes(), 256);
}

void Untouched::restore() const {
  const std::byte* from = copies_;
  for (const Tensor& t : tensors_) queue_.copy(t.raw(), from, t.bytes()), from += round_up(t.bytes(), 256);
}

}  // namespace cleave::kernels::gpu
