// What the streams of one GPU know while their work is collected for a graph.
#pragma once
#include <cuda_runtime_api.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "device/queue.h"

namespace cleave {

// A point in a CUDA stream's work.
class CudaPoint final : public Event::State {
 public:
  struct Capture;

  // Records it, for `capture` while the stream is part of one.
  CudaPoint(cudaStream_t stream, int device, std::shared_ptr<const Capture> capture = nullptr);
  ~CudaPoint() override;

  void wait() override;
  void then(std::function<void()> action) override;
  // Later work on `stream`, which is part of `now` where there is one, starts after the point.
  void hold(cudaStream_t stream, const std::shared_ptr<const Capture>& now) const;

 private:
  // The point itself, or the end of the graph it became part of.
  const CudaPoint& outside() const;

  cudaEvent_t event_ = nullptr;
  cudaStream_t stream_;
  int device_;
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

}  // namespace cleave
