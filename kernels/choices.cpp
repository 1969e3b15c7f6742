#include "kernels/choices.h"

#include <utility>

namespace cleave::kernels {

Choices& Choices::of_process() {
  static Choices all;
  return all;
}

std::optional<std::string> Choices::find(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  const auto at = known_.find(name);
  return at == known_.end() ? std::nullopt : std::optional(at->second);
}

std::string Choices::keep(const std::string& name, const std::string& choice) {
  const std::lock_guard lock(mutex_);
  const auto [at, first] = known_.emplace(name, choice);
  if (first) fresh_.insert(*at);
  return at->second;
}

void Choices::replay(const Map& earlier) {
  const std::lock_guard lock(mutex_);
  for (const auto& [name, choice] : earlier) known_.insert_or_assign(name, choice);
}

Choices::Map Choices::take_new() {
  const std::lock_guard lock(mutex_);
  return std::exchange(fresh_, {});
}

}  // namespace cleave::kernels
