// One NCCL communicator: made without blocking, its calls watched on the GPU. A call has a deadline from the
// moment the GPU comes to it, as calls of the CPU's transports have from the moment they are first in line.
#pragma once
#include <cuda_runtime_api.h>

#include <deque>
#include <functional>
#include <mutex>
#include <optional>

#include "comm/nccl/library.h"

namespace cleave {

class NcclLink {
 public:
  struct Place {
    int rank = 0, size = 1, device = 0;
  };

  // Collective over the ranks that are given this id. Ends by the group's deadline, or as soon as the group
  // is lost: Error(rank_lost) for all its ranks. Error(usage) when NCCL refuses.
  NcclLink(Group& group, const Waiting& w, Place place, const ncclUniqueId& id);
  ~NcclLink();
  NcclLink(const NcclLink&) = delete;
  NcclLink& operator=(const NcclLink&) = delete;

  using Body = std::function<ncclResult_t(const NcclLibrary&, ncclComm_t)>;
  // Enqueues what body calls on `stream`. Error(rank_lost) when the link was given up.
  void enqueue(const Waiting& w, cudaStream_t stream, const Body& body);

  // From the watching thread. Why the link cannot go on; empty while all is well.
  std::string trouble();
  // Ends what waits on the GPU; later calls throw the reason. Safe from any thread; the first one counts.
  void abort(const std::string& reason);

 private:
  struct Flight {  // a call that the GPU has not been seen to have done
    cudaEvent_t begin = nullptr, end = nullptr;
    uint64_t number = 0;
    std::string what;
    Post post;
    std::optional<Clock::time_point> since;
  };

  Flight flight(const Waiting& w);
  void land_finished();
  void settle(const Waiting& w, ncclResult_t result, const char* doing);
  ncclResult_t state();
  std::string explain(ncclResult_t result);
  void throw_if_given_up(const Waiting& w);
  std::string report(const Flight& f, const std::string& why) const;

  const NcclLibrary& nccl_;
  Group& group_;
  const Place place_;
  std::mutex mutex_;
  ncclComm_t comm_ = nullptr;
  std::string given_up_;
  std::deque<Flight> flights_;
  std::vector<Flight> landed_;  // whose events are used again
};

}  // namespace cleave
