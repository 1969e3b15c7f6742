// Removes files that this program wrote, and no others. All code that replaces or removes an output folder
// uses these functions.
#pragma once
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace cleave::checkpoint {

// True for names that a writer gives to files in its folders.
using OwnName = bool (*)(std::string_view name);

// Files of a checkpoint, finished or not: shard-00000.safetensors, manifest.json, ...
bool is_checkpoint_file(std::string_view name);
// Files that write_weights() writes: model.safetensors, or model-00001-of-00003.safetensors etc. and the
// index.
bool is_weights_file(std::string_view name);

// Names in the folder that are not the writer's, and all subfolders; sorted. Empty for a link, which is not
// followed, and if the folder does not exist.
std::vector<std::string> others_in(const std::filesystem::path& folder, OwnName own);

// Removes the writer's files, the manifest first, then the folder if it is empty. Removes a link itself, not
// its target. Returns true if the name is free now. Throws std::filesystem::filesystem_error.
bool remove_own(const std::filesystem::path& folder, OwnName own);
// remove_own() during error handling: ignores further errors.
void discard_own(const std::filesystem::path& folder, OwnName own) noexcept;
// remove_own() that first throws Error(checkpoint) if the folder has a file that is not the writer's.
void require_removed(const std::filesystem::path& folder, OwnName own);

// True if the folder is a checkpoint or the rest of one; false for user folders.
bool is_checkpoint(const std::filesystem::path& folder);
// Throws Error(checkpoint) if the name belongs to something else than a checkpoint. A link may be replaced;
// its target stays.
void require_replaceable(const std::filesystem::path& folder);

}  // namespace cleave::checkpoint
