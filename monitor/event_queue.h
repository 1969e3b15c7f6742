// Keeps events as JSON for a caller in another language, which takes them from time to time.
#pragma once
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "monitor/sink.h"

namespace cleave::monitor {

// Events as JSON objects with a member "event":
// {"event": "start", "step": 0, "fields": {...}, "files": {name: text}}
// {"event": "scalars", "samples": 8, "scalars": {"Train/Samples/lr": 0.001}} for steps, evaluations and
// points
// {"event": "memory", "kind": "planned", "step": 0, "bytes": {"device/weights": 1024}}
// {"event": "collectives", "step": 1, "sums": {"all_reduce": {"calls": 2, "bytes": 64, "seconds": 0.1}}}
// {"event": "checkpoint", "kind": "save", "path": ..., "step": 1, "bytes": 64, "seconds": 0.1}
// {"event": "warning", "text": ...}
// {"event": "end", "fields": {...}}
// Numbers that are not finite are the strings "nan", "inf" and "-inf".
class EventQueue {
 public:
  // Returns a sink that adds to this queue, which may end earlier.
  std::unique_ptr<Sink> sink(std::string name) const;
  // Returns the events since the last call as a JSON list.
  std::string take();

 private:
  struct Texts {
    std::mutex mutex;
    std::vector<std::string> waiting;
  };
  class Adds;
  std::shared_ptr<Texts> texts_ = std::make_shared<Texts>();
};

}  // namespace cleave::monitor
