// Events of a training run as plain values. The program and PyTorch scripts make the same events; sinks
// (monitor/sink.h) write them.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <type_traits>
#include <variant>

#include "monitor/metrics.h"

namespace cleave::monitor {

double steady_seconds();  // of the clock of the events

struct Started {
  double time = steady_seconds();
  int64_t step = 0, steps = 0;  // done before, and of the whole training
  double epochs = 0;            // done before
  int64_t steps_per_epoch = 0;  // 0: unknown
  std::string fields = {};      // JSON object: resolved configuration, ranks, planned memory
};
struct Stepped {
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
struct Chosen {  // kernels, by name
  std::map<std::string, std::string> choices;
};
struct Said {  // a text for a person
  std::string text;
};
struct Ended {
  std::string fields = {};  // JSON object: step, peak memory
};

using Event = std::variant<Started, Stepped, Evaluated, Measured, Chosen, Said, Ended>;

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
