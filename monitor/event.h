// Events of a training run as plain values. The program and PyTorch scripts make the same events; sinks
// (monitor/sink.h) write them.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>

#include "device/memory.h"
#include "monitor/metrics.h"

namespace cleave::monitor {

double steady_seconds();  // of the clock of the events

// The first event. Warnings that were printed before it follow it.
struct Started {
  double time = steady_seconds();
  int64_t step = 0, steps = 0;  // done before, and of the whole training
  double epochs = 0;            // done before
  int64_t steps_per_epoch = 0;  // 0: unknown
  std::string fields = {};      // JSON object: resolved configuration, ranks, planned memory
  std::map<std::string, std::string> files = {};  // to keep with the metrics: name and text
};
struct Stepped {  // with the times of its phases, if they are measured
  double time = steady_seconds();
  StepMetrics metrics;
  int64_t samples = 0;  // trained so far
};
struct Evaluated {
  EvaluationMetrics metrics;
  int64_t samples = 0;
};
struct Measured {  // a point of a curve
  Scalar scalar;
  int64_t samples = 0;
};
struct Communicated {  // collectives of a step on this rank, if comms_logger is enabled
  struct Sum {
    int64_t calls = 0, bytes = 0;
    double seconds = 0;  // includes the wait for other ranks
  };
  int64_t step = 0;
  std::map<std::string, Sum> sums;  // by kind of collective
};
struct Allocated {  // memory of this rank
  enum class Kind : uint8_t { planned, live, peak };
  Kind kind = Kind::planned;
  int64_t step = 0;
  std::map<std::string, int64_t> bytes;  // "device/weights"; without zeros
};
struct Checkpointed {
  enum class Kind : uint8_t { save, load };
  Kind kind = Kind::save;
  std::string path = {};
  int64_t step = 0;
  int64_t bytes = 0;   // of all files
  double seconds = 0;  // until a save is complete, also in the background
};
struct Warned {  // printed as a warning on this rank
  std::string text;
};
struct Chosen {  // kernels, by name
  std::map<std::string, std::string> choices;
};
struct Said {  // a text for a person
  std::string text;
};
struct Ended {
  std::string fields = {};  // JSON object: step, peak memory
  bool stopped = false;     // on request, before its last step
};

using Event = std::variant<Started, Stepped, Evaluated, Measured, Communicated, Allocated, Checkpointed,
                           Warned, Chosen, Said, Ended>;

std::string_view name_of(Allocated::Kind kind);
std::string_view name_of(Checkpointed::Kind kind);
Allocated allocated(Allocated::Kind kind, int64_t step, const MemoryTable& memory);

// Set of kinds of events, by their index in Event.
using EventKinds = uint32_t;
inline constexpr EventKinds kAllEvents = ~EventKinds{0};
template <class E, class... All>
constexpr EventKinds kind_in(const std::variant<All...>*) {
  EventKinds at = 1, found = 0;
  ((found |= std::is_same_v<E, All> ? at : 0, at <<= 1), ...);
  return found;
}
template <class... E>
constexpr EventKinds kinds_of() {
  return (kind_in<E>(static_cast<const Event*>(nullptr)) | ...);
}

}  // namespace cleave::monitor
