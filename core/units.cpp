#include "core/units.h"

#include <cctype>
#include <charconv>
#include <cmath>

#include "core/error.h"

namespace cleave {

int64_t parse_bytes(std::string_view text, std::string_view what) {
  double value = 0;
  const auto [rest, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  std::string unit;
  for (const char* c = rest; c != text.data() + text.size(); ++c)
    if (*c != ' ') unit += char(std::tolower(*c));
  double scale = unit.empty() || unit == "b" ? 1 : 0;
  constexpr std::string_view prefixes = "kmgt";
  for (size_t i = 0; i < prefixes.size() && scale == 0; ++i) {
    const std::string prefix(1, prefixes[i]);
    if (unit == prefix + "ib" || unit == prefix + "i") scale = std::pow(1024.0, double(i + 1));
    if (unit == prefix + "b" || unit == prefix) scale = std::pow(1000.0, double(i + 1));
  }
  require(status == std::errc() && scale > 0 && value >= 0 && std::isfinite(value) && value * scale < 0x1p62,
          Exit::usage, "{}: '{}' is not a size; write bytes or a unit, such as 2GiB, 512MiB or 1.5GB", what,
          text);
  return int64_t(std::llround(value * scale));
}

std::string format_bytes(int64_t bytes) {
  if (std::llabs(bytes) < 10 * 1024) return fmt::format("{} B", bytes);
  double value = double(bytes);
  for (const char* unit : {"KiB", "MiB", "GiB"}) {
    value /= 1024;
    if (std::fabs(value) < 1000) return fmt::format("{:.2f} {}", value, unit);
  }
  return fmt::format("{:.2f} TiB", value / 1024);
}

std::string format_count(int64_t count) {
  if (count < 10000) return fmt::format("{}", count);
  if (count < 1000000) return fmt::format("{:.0f} K", double(count) * 1e-3);
  if (count < 1000000000) return fmt::format("{:.1f} M", double(count) * 1e-6);
  return fmt::format("{:.2f} B", double(count) * 1e-9);
}

}  // namespace cleave
