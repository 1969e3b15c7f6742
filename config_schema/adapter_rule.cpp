#include "config_schema/adapter_rule.h"

#include <algorithm>

namespace cleave::config {

AdapterRule::AdapterRule(std::vector<std::string> targets, AdapterSize size, std::string prefix)
    : targets_(std::move(targets)), size_(size), prefix_(std::move(prefix)) {}

bool AdapterRule::names(const std::string& target, const std::string& linear) const {
  const std::string whole = prefix_ + linear;
  return target == kAllLinear || target == whole || whole.ends_with("." + target);
}

bool AdapterRule::applies_to(const std::string& linear) const {
  return std::any_of(targets_.begin(), targets_.end(),
                     [&](const std::string& target) { return names(target, linear); });
}

std::vector<std::string> AdapterRule::idle_targets(const std::vector<std::string>& linears) const {
  std::vector<std::string> idle;
  for (const std::string& target : targets_)
    if (std::none_of(linears.begin(), linears.end(),
                     [&](const std::string& linear) { return names(target, linear); }))
      idle.push_back(target);
  return idle;
}

}  // namespace cleave::config
