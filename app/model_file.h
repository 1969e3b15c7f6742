// Files of a model's folder that are copied into runs and exports.
#pragma once
#include <filesystem>
#include <string>

namespace cleave::app {

// The contents of a file of a model's folder, which whoever made the folder does not choose freely: the file
// is in the folder, or in the same model of Hugging Face's cache (snapshots/REVISION/NAME is a link to
// blobs/HASH there), and has the form of its name, JSON, a SentencePiece model or text. Error(checkpoint).
std::string model_file_text(const std::filesystem::path& file);

}  // namespace cleave::app
