#include "monitor/event.h"

#include <fmt/core.h>

#include <chrono>

namespace cleave::monitor {

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::string_view name_of(Allocated::Kind kind) {
  constexpr std::string_view names[] = {"planned", "live", "peak"};
  return names[size_t(kind)];
}

std::string_view name_of(Checkpointed::Kind kind) {
  return kind == Checkpointed::Kind::save ? "save" : "load";
}

Allocated allocated(Allocated::Kind kind, int64_t step, const MemoryTable& memory) {
  Allocated out{.kind = kind, .step = step, .bytes = {}};
  for (int k = 0; k < kMemoryKinds; ++k)
    for (int c = 0; c < kCategories; ++c)
      if (const int64_t bytes = memory.at(MemoryKind(k), Category(c)))
        out.bytes[fmt::format("{}/{}", name_of(MemoryKind(k)), name_of(Category(c)))] = bytes;
  return out;
}

}  // namespace cleave::monitor
