// Tokenizer files of a model: copies from their origin into a run's output, and from there into an
// export.
#pragma once
#include <filesystem>
#include <nlohmann/json_fwd.hpp>

#include "data/text/tokenizer.h"

namespace cleave::app {

// Copies the tokenizer and its files into a run's folder, replacing an existing tokenizer. If that
// was a different one, the token ids in the kept model files are removed. Has no effect for "byte".
// Error(checkpoint) for a file that cannot be copied.
void keep_tokenizer_files(const text::Tokenizer& tokenizer, const std::filesystem::path& folder);

// Requires that a run or an import may write its tokenizer files into `folder`: there are none, they are
// those of `tokenizer` (null: unknown), or an earlier run or import wrote them. Error(usage).
void require_own_tokenizer(const std::filesystem::path& folder, const text::Tokenizer* tokenizer);

// Copies one file of a model folder over another, unless it is missing or equal. Error(checkpoint)
// if model_file_text() rejects it (app/model_file.h).
void keep_file(const std::filesystem::path& from, const std::filesystem::path& to);
// Writes indented JSON. Error(checkpoint).
void write_json(const std::filesystem::path& path, const nlohmann::json& value);

// Sets eos_token_id, bos_token_id and pad_token_id in a config.json without them to those of the
// folder's tokenizer, null if missing, and writes the tokenizer_config.json that transformers needs
// if there is only a tokenizer.json. Error(checkpoint).
void name_special_tokens(const std::filesystem::path& folder, nlohmann::json& config);

// Tokenizer files next to a model's weights.
inline constexpr const char* kTokenizerFiles[] = {
    "tokenizer.json", "tokenizer.model",   "tokenizer_config.json", "vocab.json",
    "merges.txt",     "added_tokens.json", "chat_template.jinja",   "special_tokens_map.json"};
// A run's copy of the config.json that it started with.
inline constexpr const char* kKeptConfig = "published_config.json";

}  // namespace cleave::app
