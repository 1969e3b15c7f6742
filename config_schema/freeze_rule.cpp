#include "config_schema/freeze_rule.h"

#include <fnmatch.h>

#include <algorithm>

namespace cleave::config {
namespace {

size_t changes_between(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t changed = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, changed});
    }
  }
  return row.back();
}

}  // namespace

bool FreezeRule::fits(const std::string& pattern, const std::string& name) const {
  return fnmatch(pattern.c_str(), name.c_str(), 0) == 0 ||
         (!prefix_.empty() && fnmatch(pattern.c_str(), (prefix_ + name).c_str(), 0) == 0);
}

bool FreezeRule::applies_to(const std::string& name) const {
  return std::any_of(patterns_.begin(), patterns_.end(),
                     [&](const std::string& pattern) { return fits(pattern, name); });
}

std::vector<std::string> FreezeRule::idle_patterns(const std::vector<UnitSpec>& units) const {
  std::vector<std::string> idle;
  for (const std::string& pattern : patterns_) {
    const auto used = [&](const UnitSpec& unit) {
      return std::any_of(unit.params.begin(), unit.params.end(),
                         [&](const ParamSpec& p) { return fits(pattern, p.name); });
    };
    if (std::none_of(units.begin(), units.end(), used)) idle.push_back(pattern);
  }
  return idle;
}

std::string nearest_name(const std::string& pattern, const std::vector<UnitSpec>& units) {
  std::string nearest;
  size_t fewest = 0;
  for (const UnitSpec& unit : units)
    for (const ParamSpec& p : unit.params) {
      const size_t changes = changes_between(pattern, p.name);
      if (nearest.empty() || changes < fewest) nearest = p.name, fewest = changes;
    }
  return nearest;
}

}  // namespace cleave::config
