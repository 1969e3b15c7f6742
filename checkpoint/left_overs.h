// Files that killed saves and removals leave in a folder of checkpoints.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace cleave::checkpoint {

// Folders in `dir` that unfinished saves and removals left, by name: ".tmp.<name>", an empty
// "global_step<N>", and shards without a manifest from a save on a file system that cannot rename folders. If
// the checkpoint `in_use` of step `step` was resumed, also ".old.<name>" next to a complete <name>, and
// "global_step<N>" folders of earlier steps with shards but no manifest, which an interrupted removal leaves.
// Never `in_use`, and no folder with a foreign file. Valid only if no other job uses `dir`. Throws
// std::filesystem::filesystem_error.
std::vector<std::string> left_overs(const std::filesystem::path& dir, const std::string& in_use = "",
                                    int64_t step = -1);

}  // namespace cleave::checkpoint
