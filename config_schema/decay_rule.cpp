#include "config_schema/decay_rule.h"

#include <fnmatch.h>

#include <algorithm>

namespace cleave::config {
namespace {

bool applies(const std::string& word, const ParamSpec& param) {
  if (word == DecayRule::kAll) return true;
  if (word == DecayRule::kMatrices) return param.decay;
  return fnmatch(word.c_str(), param.name.c_str(), 0) == 0;
}

}  // namespace

bool DecayRule::applies_to(const ParamSpec& param) const {
  return std::any_of(words_.begin(), words_.end(), [&](const std::string& w) { return applies(w, param); });
}

std::vector<std::string> DecayRule::idle_patterns(const std::vector<UnitSpec>& units) const {
  std::vector<std::string> idle;
  for (const std::string& word : words_) {
    const auto used = [&](const UnitSpec& unit) {
      return std::any_of(unit.params.begin(), unit.params.end(),
                         [&](const ParamSpec& p) { return applies(word, p); });
    };
    if (word != kAll && word != kMatrices && std::none_of(units.begin(), units.end(), used))
      idle.push_back(word);
  }
  return idle;
}

}  // namespace cleave::config
