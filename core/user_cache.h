// Folder for files that later runs of a user read again.
#pragma once
#include <cstdlib>
#include <string>
#include <utility>

namespace cleave {

// $XDG_CACHE_HOME/cleave, or ~/.cache/cleave; empty if neither variable is set.
inline std::string user_cache_folder() {
  for (const auto& [name, below] : {std::pair{"XDG_CACHE_HOME", "/cleave"}, {"HOME", "/.cache/cleave"}})
    if (const char* folder = std::getenv(name); folder && *folder) return std::string(folder) + below;
  return {};
}

}  // namespace cleave
