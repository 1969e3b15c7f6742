// Aligned "name: value" lines of runs and `cleave check`.
#pragma once
#include <fmt/format.h>

#include <string>
#include <string_view>

namespace cleave::app {

inline std::string named_line(std::string_view name, std::string_view value) {
  return fmt::format("{:<12}{}", fmt::format("{}:", name), value);
}

}  // namespace cleave::app
