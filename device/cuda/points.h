// Points in the work of a GPU's streams.
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

  // Records it, for `capture` while the stream is part of one.
  CudaPoint(std::shared_ptr<StreamPoints> stream, std::shared_ptr<const Capture> capture = nullptr);
  ~CudaPoint() override;

  void wait() override;
  void wait_beside() override;
  void then(std::function<void()> action) override;
  // Later work on `stream`, which is part of `now` where there is one, starts after the point.
  void hold(cudaStream_t stream, const std::shared_ptr<const Capture>& now) const;

 private:
  // The point itself, or the end of the graph it became part of.
  const CudaPoint& outside() const;

  std::shared_ptr<StreamPoints> stream_;
  cudaEvent_t event_ = nullptr;
  bool marked_ = false;
  uint32_t mark_ = 0;  // what the stream's word comes to at the point
  std::shared_ptr<const Capture> capture_;
};

struct CudaPoint::Capture {
  // All were joined before the first task and are again after the last one.
  std::vector<cudaStream_t> streams;
  std::shared_ptr<const CudaPoint> end;  // once the graph was launched

  bool has(cudaStream_t stream) const {
    return std::find(streams.begin(), streams.end(), stream) != streams.end();
  }
};

// What the points of a stream need. Streams of the GPU wait for CUDA's events, threads that work beside the
// one that launches for a word that the stream writes: CUDA holds a launch back while a stream's queue is
// full, with a lock that every other call needs, and until such a thread is done the queue may stay full. So
// these threads call nothing of CUDA: events, too, are used again instead of destroyed. From any thread but
// where something else is said.
class StreamPoints {
 public:
  StreamPoints(cudaStream_t stream, int device) : stream_(stream), device_(device) {}
  ~StreamPoints();
  StreamPoints(const StreamPoints&) = delete;
  StreamPoints& operator=(const StreamPoints&) = delete;

  cudaStream_t stream() const { return stream_; }
  int device() const { return device_; }

  // Points from now on are told by this word in page-locked memory. On the thread that launches.
  void tell_by(uint32_t* word);
  // What the word comes to behind the stream's work until now; false where there is none. On the thread that
  // launches.
  bool mark(uint32_t& value);
  uint32_t marks() const { return marks_; }
  // Blocks until then. Throws where the GPU is lost.
  void wait_for_mark(uint32_t value);
  // All of the stream's work has ended, with this error where it failed; its word and the stream may go.
  void close(cudaError_t error) noexcept;

  cudaEvent_t take_event();
  void give_back(cudaEvent_t event) noexcept;

 private:
  bool reached(uint32_t value);

  const cudaStream_t stream_;
  const int device_;
  uint32_t marks_ = 0;
  std::mutex mutex_;  // guards what follows
  uint32_t* word_ = nullptr;
  cudaError_t lost_ = cudaSuccess;
  std::vector<cudaEvent_t> events_;
};

}  // namespace cleave
