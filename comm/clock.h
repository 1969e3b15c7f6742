// One clock for ranks whose hosts count time from different moments.
#pragma once
#include <functional>

#include "comm/communicator.h"

namespace cleave::comm {

struct ClockOffset {
  double offset = 0;      // added to this rank's clock it gives the first rank's
  double round_trip = 0;  // of the best exchange; the offset is off by half of it at most
};

// Each rank in turn asks rank 0 for its time, some rounds, of which the one with the shortest round trip
// counts (the idea of RFC 5905). `clock`: in any unit, running equally fast on all ranks. Collective, on the
// host.
ClockOffset clock_offset(Communicator& ranks, const std::function<double()>& clock);

}  // namespace cleave::comm
