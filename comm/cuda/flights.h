// The calls of a link between GPUs that its GPU has not been seen to have done, in their order. Nobody on the
// host waits for them, so each lies between two words that its stream writes, at which a watching thread
// looks.
#pragma once
#include <cuda_runtime_api.h>

#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <vector>

#include "comm/group.h"

namespace cleave::comm {

// begin() and end() are for the thread that launches, everything else for any. No lock is held while CUDA is
// called, which blocks where the stream has no room: then the watching thread has to be able to end what it
// waits for, without a call of CUDA itself (device/cuda/points.h).
class Flights {
 public:
  struct Flight {
    uint64_t number = 0;
    std::string what;
    Post post;
    uint32_t tag = 0;                              // the link's own
    int slot = 0;                                  // of two words
    bool growing = true;                           // its end was not enqueued yet
    std::optional<Clock::time_point> seen, since;  // first looked at; the GPU seen to be in it
  };

  // `rank` of the group's, on this GPU.
  Flights(Group& group, int rank, int device);
  ~Flights();
  Flights(const Flights&) = delete;
  Flights& operator=(const Flights&) = delete;

  // Around the work of a call, which is in flight between the two. Waits where very many are.
  void begin(const Waiting& w, cudaStream_t stream, uint32_t tag = 0);
  void end(cudaStream_t stream);

  bool all_done();
  // Why the first call that is not done never will be; empty while all is well. `late` tells why one may be
  // that the GPU came to a deadline ago.
  std::string trouble(const std::function<std::string(const Waiting&, const Flight&)>& late);
  // The first call that is not done, or the group, and why.
  std::string report(const std::string& why);

 private:
  Waiting waiting(const Flight& f) const;
  uint32_t* begun(int slot) const { return words_ + 2 * slot; }
  uint32_t* ended(int slot) const { return words_ + 2 * slot + 1; }
  bool passed(const uint32_t* word, int slot) const;
  void land_finished();
  std::optional<int> take_slot(const Waiting& w, uint32_t tag);

  Group& group_;
  const int rank_, device_;
  uint32_t* const words_;
  int launching_ = 0;  // the slot of the call whose end was not enqueued yet
  std::mutex mutex_;   // of what follows
  std::deque<Flight> flights_;
  std::vector<int> free_;          // slots
  std::vector<uint32_t> in_slot_;  // what its words come to in the call that has it
};

}  // namespace cleave::comm
