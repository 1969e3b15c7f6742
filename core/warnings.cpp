#include "core/warnings.h"

#include <algorithm>
#include <cstdio>
#include <mutex>
#include <vector>

#include "core/printable.h"

namespace cleave {
namespace {

constexpr size_t kKept = 256;

struct Warnings {
  // Recursive, because a listener may warn.
  std::recursive_mutex mutex;
  std::vector<std::string> kept;
  std::vector<const WarningListener::Take*> listeners;
};

// Never destroyed: threads may warn while the process ends.
Warnings& of_process() {
  static Warnings& all = *new Warnings;
  return all;
}

}  // namespace

void print_warning(const std::string& text) {
  std::fprintf(stderr, "warning: %s\n", printable(text).c_str());
  note_warning(text);
}

void note_warning(const std::string& text) {
  Warnings& all = of_process();
  const std::lock_guard lock(all.mutex);
  if (all.kept.size() < kKept) all.kept.push_back(text);
  for (size_t i = 0; i < all.listeners.size(); ++i) (*all.listeners[i])(text);
}

WarningListener::WarningListener(Take take) : take_(std::move(take)) {
  Warnings& all = of_process();
  const std::lock_guard lock(all.mutex);
  for (size_t i = 0; i < all.kept.size(); ++i) take_(std::string(all.kept[i]));
  all.listeners.push_back(&take_);
}

WarningListener::~WarningListener() {
  Warnings& all = of_process();
  const std::lock_guard lock(all.mutex);
  std::erase(all.listeners, &take_);
}

}  // namespace cleave
