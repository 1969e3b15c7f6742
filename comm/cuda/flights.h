// Tracks a GPU link's calls from launch to completion, in order. No host thread waits for them, so the stream
// writes one word before and one after each call, and a watching thread reads these words.
#pragma once
#include <cuda_runtime_api.h>

#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <vector>

#include "comm/flight_ring.h"
#include "comm/group.h"

namespace cleave::comm {

// Only the launching thread may call begin() and end(); all other members are thread-safe. No lock is held
// during CUDA calls, because they block if the stream is full; the watching thread must then be able to end
// the stream's waits without a CUDA call (device/cuda/points.h).
class Flights {
 public:
  struct Flight {
    uint64_t number = 0;
    std::string what;
    Post post;
    uint32_t tag = 0;                              // of the link
    int slot = 0;                                  // of two words
    bool growing = true;                           // its end is not enqueued yet
    std::optional<Clock::time_point> seen, since;  // first look; first time the GPU was seen in the call
    const char* phase = "";
    int64_t queued_ns = 0;
    uint64_t ticket = 0;  // of the flight ring, once the GPU was seen in the call
  };

  // `rank` is this rank in the group.
  Flights(Group& group, int rank, int device);
  ~Flights();
  Flights(const Flights&) = delete;
  Flights& operator=(const Flights&) = delete;

  // Mark the start and end of a call on the stream. begin() waits if too many calls are in flight.
  void begin(const Waiting& w, cudaStream_t stream, uint32_t tag = 0);
  void end(cudaStream_t stream);

  bool all_done();
  // Reason why the first unfinished call will never end; empty without a problem. `late` explains a call
  // that the GPU started more than a timeout ago.
  std::string trouble(const std::function<std::string(const Waiting&, const Flight&)>& late);
  // Returns body(the first unfinished call), if that is a collective and the GPU is in it for at least
  // `least`; otherwise, and if the last such call was less than `least` ago, an empty text.
  std::string compare_slow(Clock::duration least, const std::function<std::string(const Waiting&)>& body);
  // Describes the first unfinished call, or the group, and `why`.
  std::string report(const std::string& why);

 private:
  Waiting waiting(const Flight& f) const;
  uint32_t* begun(int slot) const { return words_ + 2 * slot; }
  uint32_t* ended(int slot) const { return words_ + 2 * slot + 1; }
  bool passed(const uint32_t* word, int slot) const;
  void land_finished();
  void record(Flight& flight);
  std::optional<int> take_slot(const Waiting& w, uint32_t tag);

  Group& group_;
  const int rank_, device_;
  FlightRing* const ring_;  // null: calls are not recorded
  const int ring_group_;
  uint32_t* const words_;
  int launching_ = 0;  // slot of the call between begin() and end()
  std::mutex mutex_;   // guards the members below
  std::deque<Flight> flights_;
  Clock::time_point compared_ = {};
  std::vector<int> free_;          // slots
  std::vector<uint32_t> in_slot_;  // value of the words of a slot for its current call
};

}  // namespace cleave::comm
