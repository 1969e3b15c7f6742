// Launches repeated GPU work of the same shape as one CUDA graph ("CUDA C++ Programming Guide", CUDA Graphs).
// The host code runs every time, so its decisions apply: the work is captured again, and the existing graph
// is updated (whole graph update).
#pragma once
#include <array>
#include <functional>
#include <memory>
#include <vector>

#include "device/stream.h"

namespace cleave {

class Graphs {
 public:
  // always: from the second time on. measured: tries both ways a few times, then uses the faster one.
  enum class Use { always, measured };

  using Key = std::array<int, 4>;  // identifies work; chosen by the caller

  virtual ~Graphs() = default;
  // Calls `work`, which enqueues on the streams, may wait for any events of these streams, and does not use
  // memory that the host changes. The first call of a key enqueues without a graph, so that libraries can
  // make their choices. All work of a key enqueues the same kernels, with arbitrary arguments.
  virtual void run(const Key& key, const std::function<void()>& work) = 0;
};

// For streams of one GPU; they must outlive the graphs. Throws Error(usage) in a build without CUDA.
std::unique_ptr<Graphs> make_graphs(std::vector<Stream*> streams, Graphs::Use use);

}  // namespace cleave
