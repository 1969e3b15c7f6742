// Events on GPU streams.
#pragma once
#include <cuda_runtime_api.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <vector>

#include "device/queue.h"

namespace cleave {

class StreamPoints;

// A point in a CUDA stream's work.
class CudaPoint final : public Event::State {
 public:
  struct Capture;

  // Records the point, for `capture` if the stream is being captured.
  CudaPoint(std::shared_ptr<StreamPoints> stream, std::shared_ptr<const Capture> capture = nullptr);
  ~CudaPoint() override;

  void wait() override;
  void wait_beside() override;
  void then(std::function<void()> action) override;
  // Makes later work of `stream` wait for the point. `now` is the capture of `stream`, or null.
  void hold(cudaStream_t stream, const std::shared_ptr<const Capture>& now) const;

 private:
  // Returns this point, or the end of the graph that it was captured into.
  const CudaPoint& outside() const;

  std::shared_ptr<StreamPoints> stream_;
  cudaEvent_t event_ = nullptr;
  bool marked_ = false;
  uint32_t mark_ = 0;  // value of the stream's word at the point
  std::shared_ptr<const Capture> capture_;
};

struct CudaPoint::Capture {
  // All streams are joined before the first task and after the last one.
  std::vector<cudaStream_t> streams;
  std::shared_ptr<const CudaPoint> end;  // set after the graph launch

  bool has(cudaStream_t stream) const {
    return std::find(streams.begin(), streams.end(), stream) != streams.end();
  }
};

// Resources of a stream's points. GPU streams wait for CUDA events; host threads other than the launching one
// wait for a word that the stream writes. Reason: CUDA blocks a launch while a stream's queue is full, and
// holds a lock that every other call needs; the queue may stay full until such a thread is done. So these
// threads never call CUDA, and events are reused instead of destroyed. Members may be called from any thread
// unless stated otherwise.
class StreamPoints {
 public:
  StreamPoints(cudaStream_t stream, int device) : stream_(stream), device_(device) {}
  ~StreamPoints();
  StreamPoints(const StreamPoints&) = delete;
  StreamPoints& operator=(const StreamPoints&) = delete;

  cudaStream_t stream() const { return stream_; }
  int device() const { return device_; }

  // Signals later points by this word in page-locked memory. Launching thread only.
  void tell_by(uint32_t* word);
  // Sets `value` to the word's value after the stream's work so far; false if the stream has no word.
  // Launching thread only.
  bool mark(uint32_t& value);
  uint32_t marks() const { return marks_; }
  // Blocks until the word reaches the value. Throws if the GPU is lost.
  void wait_for_mark(uint32_t value);
  // Called when all work of the stream has ended, with its error. The word and the stream may be freed
  // afterwards.
  void close(cudaError_t error) noexcept;

  cudaEvent_t take_event();
  void give_back(cudaEvent_t event) noexcept;

 private:
  bool reached(uint32_t value);

  const cudaStream_t stream_;
  const int device_;
  uint32_t marks_ = 0;
  std::mutex mutex_;  // guards the following members
  uint32_t* word_ = nullptr;
  cudaError_t lost_ = cudaSuccess;
  std::vector<cudaEvent_t> events_;
};

}  // namespace cleave
