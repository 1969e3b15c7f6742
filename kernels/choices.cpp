#include "kernels/choices.h"

#include <utility>

#include "core/build.h"

namespace cleave::kernels {

Choices& Choices::of_process() {
  // Measured times of interpreted GPUs mean nothing.
  static Choices all(build::interpreter ? ChoiceFile() : ChoiceFile(ChoiceFile::default_path()));
  return all;
}

std::optional<std::string> Choices::find(const std::string& name) {
  const std::lock_guard lock(mutex_);
  if (const auto at = known_.find(name); at != known_.end()) return at->second;
  in_file_.merge(file_.read_new());
  const auto at = in_file_.find(name);
  if (at == in_file_.end()) return std::nullopt;
  known_.insert(*at), fresh_.insert(*at);
  return at->second;
}

std::string Choices::keep(const std::string& name, const std::string& choice, Reason reason) {
  const std::lock_guard lock(mutex_);
  const auto [at, first] = known_.emplace(name, choice);
  if (first) fresh_.insert(*at);
  if (first && reason == Reason::measured) file_.add(name, choice);
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
