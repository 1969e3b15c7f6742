#include "device/cuda/points.h"

#include <atomic>
#include <chrono>
#include <thread>

#include "device/cuda/check.h"
#include "device/cuda/lost.h"
#include "device/cuda/words.h"

namespace cleave {

using namespace std::chrono_literals;

CudaPoint::CudaPoint(std::shared_ptr<StreamPoints> stream, std::shared_ptr<const Capture> capture)
    : stream_(std::move(stream)), event_(stream_->take_event()), capture_(std::move(capture)) {
  const cudaError_t recorded = cudaEventRecord(event_, stream_->stream());
  if (recorded != cudaSuccess) stream_->give_back(event_);
  cuda_check(recorded, "cudaEventRecord", stream_->device());
  if (!capture_) marked_ = stream_->mark(mark_);
}

CudaPoint::~CudaPoint() { stream_->give_back(event_); }

const CudaPoint& CudaPoint::outside() const {
  if (!capture_) return *this;
  CHECK(capture_->end, "cuda:{}: waiting for work that is still being captured", stream_->device());
  return *capture_->end;
}

void CudaPoint::wait() {
  cuda_check(cudaEventSynchronize(outside().event_), "cudaEventSynchronize", stream_->device());
}

void CudaPoint::wait_beside() {
  const CudaPoint& point = outside();
  if (!point.marked_) return wait();
  point.stream_->wait_for_mark(point.mark_);
}

void CudaPoint::then(std::function<void()> action) {
  wait();
  action();
}

void CudaPoint::hold(cudaStream_t stream, const std::shared_ptr<const Capture>& now) const {
  const bool before = now && capture_ != now;
  // The streams of a capture were joined when it began.
  if (before && now->has(outside().stream_->stream())) return;
  CHECK(!before, "cuda:{}: captured work waits for a stream that is not part of the capture",
        stream_->device());
  const CudaPoint& point = now ? *this : outside();
  cuda_check(cudaStreamWaitEvent(stream, point.event_, 0), "cudaStreamWaitEvent", stream_->device());
}

StreamPoints::~StreamPoints() {
  for (const cudaEvent_t event : events_) cudaEventDestroy(event);
}

void StreamPoints::tell_by(uint32_t* word) {
  // Earlier marks are signaled by the old word.
  if (marks_ > 0) cuda_check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize", device_);
  const std::lock_guard lock(mutex_);
  std::atomic_ref(*word).store(marks_, std::memory_order_release);
  word_ = word;
}

bool StreamPoints::mark(uint32_t& value) {
  if (!word_) return false;  // set by this thread
  write_word(stream_, word_, marks_ + 1, device_);
  value = ++marks_;
  return true;
}

bool StreamPoints::reached(uint32_t value) {
  const std::lock_guard lock(mutex_);
  cuda_check(lost_, "the wait of a host thread", device_);
  return !word_ || int32_t(std::atomic_ref(*word_).load(std::memory_order_acquire) - value) >= 0;
}

void StreamPoints::wait_for_mark(uint32_t value) {
  constexpr int kSpins = 1000;
  constexpr auto kPause = 20us;
  for (int i = 0; i < kSpins; ++i)
    if (reached(value)) return;
  const auto begin = std::chrono::steady_clock::now();
  while (!reached(value)) {
    std::this_thread::sleep_for(kPause);
    // A lost GPU does not write its word.
    if (std::chrono::steady_clock::now() - begin > 1s)
      cuda_check(known_loss(device_), "the wait of a host thread", device_);
  }
}

void StreamPoints::close(cudaError_t error) noexcept {
  const std::lock_guard lock(mutex_);
  word_ = nullptr;
  if (error != cudaSuccess) lost_ = error;
}

cudaEvent_t StreamPoints::take_event() {
  {
    const std::lock_guard lock(mutex_);
    if (!events_.empty()) {
      const cudaEvent_t event = events_.back();
      events_.pop_back();
      return event;
    }
  }
  cudaEvent_t event = nullptr;
  cuda_check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate", device_);
  return event;
}

void StreamPoints::give_back(cudaEvent_t event) noexcept {
  const std::lock_guard lock(mutex_);
  events_.push_back(event);
}

}  // namespace cleave
