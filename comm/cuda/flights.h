// The calls of a link between GPUs that its GPU has not been seen to have done, in their order. Nobody on the
// host waits for them, so each lies between two events at which a watching thread looks.
#pragma once
#include <cuda_runtime_api.h>

#include <deque>
#include <functional>
#include <optional>

#include "comm/group.h"

namespace cleave::comm {

// Not thread-safe: its link holds a lock.
class Flights {
 public:
  struct Flight {
    cudaEvent_t begin = nullptr, end = nullptr;
    uint64_t number = 0;
    std::string what;
    Post post;
    uint32_t tag = 0;     // the link's own
    bool growing = true;  // its end was not recorded yet
    std::optional<Clock::time_point> since;
  };

  // `rank` of the group's, on this GPU.
  Flights(Group& group, int rank, int device) : group_(group), rank_(rank), device_(device) {}
  ~Flights();
  Flights(const Flights&) = delete;
  Flights& operator=(const Flights&) = delete;

  // Around the work of a call, which is in flight between the two; events are recorded on the stream.
  void begin(const Waiting& w, cudaStream_t stream, uint32_t tag = 0);
  void end(cudaStream_t stream);

  bool all_done();
  // Why the first call that is not done never will be; empty while all is well. `late` tells why one may be
  // that the GPU came to a deadline ago.
  std::string trouble(const std::function<std::string(const Waiting&, const Flight&)>& late);
  // The first call that is not done, or the group, and why.
  std::string report(const std::string& why) const;

 private:
  Waiting waiting(const Flight& f) const;
  void land_finished();

  Group& group_;
  const int rank_, device_;
  std::deque<Flight> flights_;
  std::vector<Flight> landed_;  // whose events are used again
};

}  // namespace cleave::comm
