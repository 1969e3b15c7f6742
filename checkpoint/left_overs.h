// What kills leave in a folder of checkpoints.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace cleave::checkpoint {

// Folders in dir that saves and removals left which did not end, by name: ".tmp.<name>"; an empty
// "global_step<N>"; shards without a
// manifest that a save where folders are not renamed was writing; and, where the checkpoint `in_use` of that
// step was resumed, ".old.<name>" beside a whole <name>, and shards of "global_step<N>" without a manifest of
// an earlier step, which is what a removal leaves. Never `in_use`, and no folder with a file that is not of a
// checkpoint. True only for a job that has dir alone. Throws std::filesystem::filesystem_error.
std::vector<std::string> left_overs(const std::filesystem::path& dir, const std::string& in_use = "",
                                    int64_t step = -1);

}  // namespace cleave::checkpoint
