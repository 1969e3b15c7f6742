// Log of collectives: count, latency and bandwidth by kind and size.
#pragma once
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "device/trace.h"
#include "monitor/event.h"

namespace cleave::monitor {

// Bandwidths of one collective over `ranks` ranks that moves a tensor of `bytes` in `seconds`, in bytes per
// second, as defined by NCCL's tests: the algorithm bandwidth is bytes / seconds; the bus bandwidth is the
// traffic of each rank's link, which does not depend on the number of ranks if links are the bottleneck.
struct Bandwidth {
  double algorithm = 0, bus = 0;
};
Bandwidth bandwidth_of(std::string_view op, int64_t bytes, int ranks, double seconds);

struct CommsLogOptions {
  // Collectives to log, also by longer PyTorch names ("all_gather_into_tensor"); empty: all.
  std::vector<std::string> ops = {};
  bool with_groups = false;  // rows also contain the group and purpose
};

class CommsLog {
 public:
  explicit CommsLog(CommsLogOptions options = {}) : options_(std::move(options)) {}

  // Counts the event if it is a selected collective; returns true if it is.
  bool see(const TraceEvent& event);

  // Returns calls, bytes and seconds of the counted collectives since the last call, by kind.
  std::map<std::string, Communicated::Sum> take_sums() { return std::exchange(sums_, {}); }

  // "comm op: all_reduce | time (ms): 1.23 | msg size: 4.00 MiB | algbw (GB/s): 3.41 | busbw (GB/s): 5.12"
  std::string line_of(const TraceEvent& event) const;

  // One row per collective and size: count, total and mean latency, and mean bandwidths (of the middle 80 %
  // of the calls by latency).
  std::string table() const;

 private:
  struct Row {
    std::string name;
    int64_t bytes = 0;
    int ranks = 0;
    bool operator<(const Row& o) const {
      return std::tie(name, bytes, ranks) < std::tie(o.name, o.bytes, o.ranks);
    }
  };
  std::string name_of(const TraceEvent& event) const;

  CommsLogOptions options_;
  struct Calls {
    std::string_view op;
    std::vector<double> seconds;
  };
  std::map<Row, Calls> rows_;
  std::map<std::string, Communicated::Sum> sums_;
};

}  // namespace cleave::monitor
