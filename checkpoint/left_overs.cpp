#include "checkpoint/left_overs.h"

#include <algorithm>
#include <charconv>
#include <string_view>

#include "checkpoint/checkpoint.h"
#include "checkpoint/removal.h"

namespace cleave::checkpoint {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kTemporary = ".tmp.", kReplaced = ".old.", kStep = "global_step";

struct Contents {
  bool empty = true, foreign = false, manifest = false, shards = false;
  bool unfinished = false;  // a rank's shard list, or a temporary manifest
};

Contents contents_of(const fs::path& folder) {
  Contents c;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const fs::path name = entry.path().filename();
    c.empty = false;
    if (!is_checkpoint_file(name.string()) || entry.symlink_status().type() == fs::file_type::directory)
      c.foreign = true;
    else if (name == "manifest.json")
      c.manifest = true;
    else if (name.extension() == ".safetensors")
      c.shards = true;
    else if (name != "file")  // left by the trial rename of a folder
      c.unfinished = true;
  }
  return c;
}

bool is_whole(const fs::path& dir, const std::string& name) {
  try {
    CheckpointReader(dir, name).check_files();
    return true;
  } catch (const Error&) {
    return false;
  }
}

// Returns the N of "global_step<N>"; -1 for another name.
int64_t step_of(std::string_view name) {
  int64_t step = 0;
  if (!name.starts_with(kStep)) return -1;
  name.remove_prefix(kStep.size());
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), step);
  return error == std::errc() && end == name.data() + name.size() ? step : -1;
}

bool is_left_over(const fs::path& dir, const std::string& name, const std::string& in_use, int64_t step) {
  const Contents c = contents_of(dir / name);
  if (c.foreign || name == in_use) return false;
  if (name.starts_with(kTemporary)) return true;
  if (name.starts_with(kReplaced))
    return !in_use.empty() && (c.manifest ? is_whole(dir, name.substr(kReplaced.size())) : c.shards);
  const int64_t its = step_of(name);
  if (c.empty) return its >= 0;
  return !c.manifest && (c.unfinished || (c.shards && its >= 0 && its < step));
}

}  // namespace

std::vector<std::string> left_overs(const fs::path& dir, const std::string& in_use, int64_t step) {
  std::vector<std::string> names;
  if (!fs::exists(dir)) return names;
  for (const auto& entry : fs::directory_iterator(dir)) {
    const std::string name = entry.path().filename().string();
    if (entry.is_directory() && !entry.is_symlink() && is_left_over(dir, name, in_use, step))
      names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace cleave::checkpoint
