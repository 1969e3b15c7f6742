// The files of a tokenizer that go with a model: from where it was read into a run's output, and from there
// into an export.
#pragma once
#include <filesystem>
#include <nlohmann/json_fwd.hpp>

#include "data/text/tokenizer.h"

namespace cleave::app {

// Copies the tokenizer's file and what belongs to it into a run's folder, replacing a tokenizer that
// is there. Where that was another one, what the kept model's files say of tokens' ids goes with it. Nothing
// is done for "byte". Error(checkpoint) for a file that cannot be copied.
void keep_tokenizer_files(const text::Tokenizer& tokenizer, const std::filesystem::path& folder);

// Copies one file of a model's folder over another, unless it is not there or is the same. Error(checkpoint)
// where model_file_text() refuses it (app/model_file.h).
void keep_file(const std::filesystem::path& from, const std::filesystem::path& to);
// The file has it in lines. Error(checkpoint).
void write_json(const std::filesystem::path& path, const nlohmann::json& value);

// Puts eos_token_id, bos_token_id and pad_token_id of the tokenizer in the folder, null for what it has not,
// into a config.json that does not say them; and writes the tokenizer_config.json that transformers needs
// where there is a tokenizer.json alone. Error(checkpoint).
void name_special_tokens(const std::filesystem::path& folder, nlohmann::json& config);

// The files beside a model's weights that are of its tokenizer.
inline constexpr const char* kTokenizerFiles[] = {
    "tokenizer.json", "tokenizer.model",   "tokenizer_config.json", "vocab.json",
    "merges.txt",     "added_tokens.json", "chat_template.jinja",   "special_tokens_map.json"};
// What a run keeps of the config.json that it began with.
inline constexpr const char* kKeptConfig = "published_config.json";

}  // namespace cleave::app
