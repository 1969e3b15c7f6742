// Text of a flight record, with async-signal-safe calls only.
#pragma once
#include <string_view>

#include "comm/flight_ring.h"

namespace cleave::launcher {

struct FlightFacts {
  const comm::FlightRing* ring = nullptr;
  int rank = 0, ranks = 1, attempt = 0;
  std::string_view job, host, reason, text;
  int python = -1;                // descriptor with the Python stacks, which are taken from it; -1: none
  const void* context = nullptr;  // of the signal that the calling thread handles; null: none
};

// Writes the record with the stacks of all threads. One call at a time.
void write_flight_record(int fd, const FlightFacts& facts);

}  // namespace cleave::launcher
