#include "app/tokenizer_files.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "app/model_file.h"
#include "checkpoint/removal.h"
#include "core/error.h"
#include "core/input_file.h"
#include "core/json.h"

namespace cleave::app {
namespace fs = std::filesystem;
using nlohmann::json;
namespace {

constexpr const char* kRoles[] = {"eos", "bos", "pad"};
constexpr int64_t kMostBytes = int64_t{16} << 20;

// Reads a small file; null if it is missing or not JSON.
json json_in(const fs::path& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return {};
  const std::string text = InputFile(path.string(), Exit::checkpoint).text(kMostBytes);
  return json_or_nothing(text);
}

// Returns a token named in tokenizer_config.json or special_tokens_map.json; empty without one.
std::string named_token(const json& config, const std::string& role) {
  if (!config.is_object() || !config.contains(role + "_token")) return {};
  const json& token = config[role + "_token"];
  const json& text = token.is_object() && token.contains("content") ? token["content"] : token;
  return text.is_string() ? text.get<std::string>() : "";
}

// Returns null for a missing or unsupported tokenizer.
std::unique_ptr<text::Tokenizer> tokenizer_in(const fs::path& folder) {
  const std::string file = text::tokenizer_file_in(folder.string());
  try {
    return file.empty() ? nullptr : text::open_tokenizer(file);
  } catch (const Error&) {
    return nullptr;
  }
}

std::optional<int32_t> id_of(const text::Tokenizer& tokenizer, const std::string& token) {
  if (token.empty()) return {};
  const std::vector<int32_t> ids = tokenizer.encode(token);
  return ids.size() == 1 ? std::optional(ids[0]) : std::nullopt;
}

// Returns the token that the tokenizer itself uses, for files that do not name it.
std::optional<int32_t> own_id(const text::Tokenizer& tokenizer, const std::string& role) {
  if (role == "eos") return tokenizer.end_of_text();
  const std::vector<int32_t> framed = tokenizer.encode("", {.frame = true});
  const bool begins = role == "bos" && !framed.empty() && framed[0] != tokenizer.end_of_text();
  return begins ? std::optional(framed[0]) : std::nullopt;
}

// transformers reads the tokenizer class here. It takes missing tokens from the class, which may
// differ from those in training.
void write_tokenizer_config(const fs::path& folder, const text::Tokenizer& tokenizer, const json& ids) {
  json config{{"tokenizer_class", "PreTrainedTokenizerFast"},
              {"model_input_names", {"input_ids", "attention_mask"}}};
  for (const char* role : kRoles) {
    const json& id = ids[std::string(role) + "_token_id"];
    if (id.is_number_integer())
      config[std::string(role) + "_token"] = std::string(tokenizer.bytes_of(id.get<int32_t>()));
  }
  write_json(folder / "tokenizer_config.json", config);
}

void write_file(const fs::path& path, const std::string& bytes) {
  std::ofstream out(path, std::ios::binary);
  out << bytes;
  out.close();
  require(out.good(), Exit::checkpoint, "{}: cannot be written; check the free space", path.string());
}

void write_whole(const fs::path& to, const std::string& bytes) {
  const fs::path temporary = to.parent_path() / (".tmp." + to.filename().string());
  write_file(temporary, bytes);
  std::error_code error;
  fs::rename(temporary, to, error);
  require(!error, Exit::checkpoint, "{}: cannot be written: {}", to.string(), error.message());
}

// Removes token ids after a change of the tokenizer.
void forget_token_ids(const fs::path& folder) {
  std::error_code error;
  fs::remove(folder / "generation_config.json", error);
  json kept = json_in(folder / kKeptConfig);
  if (!kept.is_object()) return;
  for (const char* role : kRoles) kept.erase(std::string(role) + "_token_id");
  write_json(folder / kKeptConfig, kept);
}

// Returns true for a folder that a run or an import wrote into.
bool is_output(const fs::path& folder) {
  std::error_code error;
  if (fs::exists(folder / kKeptConfig, error)) return true;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error))
    if (entry.is_directory(error) && checkpoint::is_checkpoint(entry)) return true;
  return false;
}

}  // namespace

void write_json(const fs::path& path, const json& value) { write_file(path, value.dump(2) + "\n"); }

// Creates a new file with the usual mode; the original may be private or read-only.
void keep_file(const fs::path& from, const fs::path& to) {
  std::error_code error;
  if (!fs::exists(from, error) || fs::equivalent(from, to, error)) return;
  write_whole(to, model_file_text(from));
}

void require_own_tokenizer(const fs::path& folder, const text::Tokenizer* tokenizer) {
  std::error_code error;
  const auto* found = std::ranges::find_if(
      kTokenizerFiles, [&](const char* name) { return fs::exists(folder / name, error); });
  if (found == std::end(kTokenizerFiles) || is_output(folder)) return;
  const auto there = tokenizer_in(folder);
  const bool same = tokenizer && there && there->digest() == tokenizer->digest();
  require(
      same, Exit::usage,
      "{}: contains another tokenizer ({}), which would be replaced; choose another folder for the output",
      folder.string(), *found);
}

void keep_tokenizer_files(const text::Tokenizer& tokenizer, const fs::path& folder) {
  if (tokenizer.path() == "byte") return;
  const fs::path file = tokenizer.path(), from = file.parent_path();
  const std::string name = file.extension() == ".model" ? "tokenizer.model" : "tokenizer.json";
  std::error_code error;
  if (fs::equivalent(from.empty() ? "." : from, folder, error)) return;
  const auto there = tokenizer_in(folder);
  if (!there || there->digest() != tokenizer.digest()) forget_token_ids(folder);
  for (const char* old : kTokenizerFiles) fs::remove(folder / old, error);
  // The tokenizer was read from this file, which may be a user's link to anywhere.
  if (!fs::equivalent(file, folder / name, error))
    write_whole(folder / name, InputFile(file.string(), Exit::checkpoint).text());
  if (file.filename() != name) return;  // files next to it may belong to other tokenizers
  for (const char* other : kTokenizerFiles)
    if (other != name) keep_file(from / other, folder / other);
}

void name_special_tokens(const fs::path& folder, json& config) {
  const auto tokenizer = tokenizer_in(folder);
  const json names = json_in(folder / "tokenizer_config.json"),
             more = json_in(folder / "special_tokens_map.json");
  json ids;
  for (const std::string role : kRoles) {
    std::optional<int32_t> id;
    if (tokenizer) {
      id = id_of(*tokenizer, named_token(names, role));
      if (!id) id = id_of(*tokenizer, named_token(more, role));
      if (!id) id = own_id(*tokenizer, role);
    }
    json& out = ids[role + "_token_id"];
    if (id) out = *id;
  }
  for (const auto& [key, id] : ids.items())
    if (!config.contains(key)) config[key] = id;
  if (tokenizer && names.is_null() && fs::path(tokenizer->path()).extension() == ".json")
    write_tokenizer_config(folder, *tokenizer, ids);
}

}  // namespace cleave::app
