#include "device/cuda/capture.h"

#include "device/cuda/check.h"

namespace cleave {

CudaPoint::CudaPoint(cudaStream_t stream, int device, std::shared_ptr<const Capture> capture)
    : stream_(stream), device_(device), capture_(std::move(capture)) {
  cuda_check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEventCreate", device);
  cuda_check(cudaEventRecord(event_, stream), "cudaEventRecord", device);
}

CudaPoint::~CudaPoint() { cudaEventDestroy(event_); }

const CudaPoint& CudaPoint::outside() const {
  if (!capture_) return *this;
  CHECK(capture_->end, "cuda:{}: waiting for work that is still being captured", device_);
  return *capture_->end;
}

void CudaPoint::wait() {
  cuda_check(cudaEventSynchronize(outside().event_), "cudaEventSynchronize", device_);
}

void CudaPoint::then(std::function<void()> action) {
  wait();
  action();
}

void CudaPoint::hold(cudaStream_t stream, const std::shared_ptr<const Capture>& now) const {
  const bool before = now && capture_ != now;
  // The streams of a capture were joined when it began.
  if (before && now->has(outside().stream_)) return;
  CHECK(!before, "cuda:{}: captured work waits for a stream that is not part of the capture", device_);
  const CudaPoint& point = now ? *this : outside();
  cuda_check(cudaStreamWaitEvent(stream, point.event_, 0), "cudaStreamWaitEvent", device_);
}

}  // namespace cleave
