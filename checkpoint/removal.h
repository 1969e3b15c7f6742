// Removal of files that this program wrote, and of no others: all code that replaces or removes a folder of
// output calls it.
#pragma once
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace cleave::checkpoint {

// Whether a name is one that a writer gives to files in its folders.
using OwnName = bool (*)(std::string_view name);

// shard-00000.safetensors, manifest.json, ...: the files of a checkpoint, finished or not.
bool is_checkpoint_file(std::string_view name);
// model.safetensors, or model-00001-of-00003.safetensors and so on with the index: what write_weights()
// writes.
bool is_weights_file(std::string_view name);

// Names in the folder that are not the writer's, and all folders in it; sorted. None of a link, which is not
// followed, and where nothing has the name.
std::vector<std::string> others_in(const std::filesystem::path& folder, OwnName own);

// Removes the writer's files, the manifest first, and then the folder, if nothing else is in it; of a link
// the link. Returns whether nothing has the name now. Throws std::filesystem::filesystem_error.
bool remove_own(const std::filesystem::path& folder, OwnName own);
// The same behind an error, which counts: another one is ignored.
void discard_own(const std::filesystem::path& folder, OwnName own) noexcept;
// As remove_own(); Error(checkpoint) names a file that is not the writer's, before anything is removed.
void require_removed(const std::filesystem::path& folder, OwnName own);

// Whether the folder is a checkpoint, or what is left of one, and not a folder of the user's.
bool is_checkpoint(const std::filesystem::path& folder);
// Error(checkpoint) if anything but a checkpoint has the name. A link may be replaced: what it leads to
// stays.
void require_replaceable(const std::filesystem::path& folder);

}  // namespace cleave::checkpoint
