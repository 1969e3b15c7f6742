// Work that a GPU is given again and again in the same shape, launched as one CUDA graph ("CUDA C++
// Programming Guide", CUDA Graphs). The host runs its code every time, so that whatever it decides holds: the
// work is captured anew, and the graph of the last time takes over what changed (whole graph update).
#pragma once
#include <array>
#include <functional>
#include <memory>
#include <vector>

#include "device/stream.h"

namespace cleave {

class Graphs {
 public:
  // always: from the second time on. measured: a few times in either way, and then in the faster one.
  enum class Use { always, measured };

  using Key = std::array<int, 4>;  // what a work is: the caller's numbers

  virtual ~Graphs() = default;
  // Calls `work`, which enqueues on the streams, waits for events that these recorded, at any time, and uses
  // no memory that the host changes. The first time with a key its tasks are enqueued as they are, so that
  // libraries make their choices; works of one key enqueue the same kernels with other arguments.
  virtual void run(const Key& key, const std::function<void()>& work) = 0;
};

// For streams of one GPU, which outlive it. Error(usage) in a build without CUDA.
std::unique_ptr<Graphs> make_graphs(std::vector<Stream*> streams, Graphs::Use use);

}  // namespace cleave
