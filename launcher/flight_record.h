// Reads the files of launcher/flight_file.h.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "comm/post.h"
#include "launcher/symbols.h"

namespace cleave::launcher {

struct FlightRecord {
  struct Group {
    std::string name;
    std::vector<int> ranks;             // of the world
    int64_t entered = 0, finished = 0;  // number of the newest collective
    bool operator==(const Group& o) const { return name == o.name && ranks == o.ranks; }
  };
  struct Call {
    int group = -1;  // index; -1: unknown
    int64_t number = 0;
    std::string op, type, by, what, phase;
    int64_t count = 0;
    int peer = -1;
    int64_t entered_us = 0, finished_us = 0;  // finished 0: running
    bool is_message() const { return op == "send" || op == "recv"; }
    bool running() const { return finished_us == 0; }
  };
  struct Thread {
    int tid = 0;
    std::string name;
    std::vector<CodeAddress> frames;
  };

  int rank = 0, ranks = 1, attempt = 0, pid = 0;
  std::string job, host, reason, text, python;
  int64_t time_us = 0;
  std::vector<Group> groups;
  std::vector<Call> calls;      // oldest first
  std::vector<Thread> threads;  // the one that wrote the file first
};

// Records of the newest job in the folder, by rank. Throws Error(usage) if there is none, or a file is
// malformed.
std::vector<FlightRecord> read_flight_records(const std::string& folder);

}  // namespace cleave::launcher
