// Synchronizes clocks of ranks on hosts with different time origins.
#pragma once
#include <functional>

#include "comm/communicator.h"

namespace cleave::comm {

struct ClockOffset {
  double offset = 0;      // add to this rank's clock to get rank 0's
  double round_trip = 0;  // of the best exchange; `offset` is off by at most half of it
};

// Each rank in turn asks rank 0 for its time in several rounds; the round with the shortest round trip counts
// (the idea of RFC 5905). `clock` may have any unit but must run equally fast on all ranks. Collective, on
// the host.
ClockOffset clock_offset(Communicator& ranks, const std::function<double()>& clock);

}  // namespace cleave::comm
