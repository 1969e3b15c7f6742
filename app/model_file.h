// Files of a model folder that are copied into runs and exports.
#pragma once
#include <filesystem>
#include <string>

namespace cleave::app {

// Returns the contents of a file in a model folder. Error(checkpoint) unless the file is in the
// folder itself, or in the same model of the Hugging Face cache (snapshots/REVISION/NAME links to
// blobs/HASH), and has the format of its name: JSON, SentencePiece model or text. This keeps
// untrusted folders from copying other files of the machine.
std::string model_file_text(const std::filesystem::path& file);

}  // namespace cleave::app
