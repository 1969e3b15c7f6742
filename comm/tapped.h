// Shows each call of a rank to an observer, with the memory that it sends and receives: to record the calls
// of a step, or to make them again without other ranks.
#pragma once
#include <memory>
#include <string_view>
#include <vector>

#include "comm/planned.h"

namespace cleave::comm {

// A call as its rank sees it. The tensors are views, in the order of ranks; a rank's part of its own result
// is not received.
struct SeenCall {
  const PlannedGroup& group;
  Post post;
  std::string_view what;
  std::vector<Tensor> sent, received;
};

class CallTap {
 public:
  virtual ~CallTap() = default;
  // Called on the host thread before the call is enqueued, and afterwards with the same values.
  // Implementations enqueue their work with the memory on `stream`. begin() returns a number for end().
  virtual size_t begin(const SeenCall& call, Stream& stream) = 0;
  virtual void end(size_t number, const SeenCall& call, Stream& stream) = 0;
};

// The calls go to `ranks`. `ranks` and `tap` must outlive the result and its splits, which are also tapped.
// Streams that drop their work are not shown.
std::unique_ptr<Communicator> tapped_communicator(Communicator& ranks, CallTap& tap);
// The tap alone fills the memory that a call receives.
std::unique_ptr<Communicator> lone_communicator(int rank, int size, CallTap& tap);

}  // namespace cleave::comm
