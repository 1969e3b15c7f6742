#include "data/text/tokenizer.h"

#include <array>
#include <filesystem>

#include "core/error.h"
#include "data/text/json_tokenizer.h"
#include "data/text/sentencepiece_tokenizer.h"
#include "core/utf8.h"

namespace cleave::text {
namespace {

namespace fs = std::filesystem;

// One token per byte.
class ByteTokenizer : public Tokenizer {
 public:
  ByteTokenizer() : Tokenizer("byte") {
    for (int i = 0; i < 256; ++i) bytes_[size_t(i)] = char(i);
  }

  void encode(std::string_view text, const EncodeOptions&, std::vector<int32_t>& out) const override {
    out.reserve(out.size() + text.size());
    for (const char c : text) out.push_back(static_cast<unsigned char>(c));
  }
  std::string_view bytes_of(int32_t id) const override {
    return id >= 0 && id < 256 ? std::string_view(&bytes_[size_t(id)], 1) : std::string_view();
  }
  bool is_special(int32_t) const override { return false; }
  int64_t vocab_size() const override { return 256; }
  std::optional<int32_t> end_of_text() const override { return {}; }
  uint64_t digest() const override { return 0; }
  std::string describe() const override { return "bytes, vocabulary 256"; }
  bool can_cut_at_lines() const override { return true; }

 private:
  std::array<char, 256> bytes_{};
};

}  // namespace

std::vector<int32_t> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  std::vector<int32_t> out;
  encode(text, options, out);
  return out;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool special) const {
  std::string text;
  bool first = true;
  for (const int32_t id : ids) {
    if (!special && is_special(id)) continue;
    text += first ? first_bytes_of(id) : bytes_of(id);
    first = first && bytes_of(id).empty();
  }
  return text;
}

std::string StreamDecoder::add(int32_t id) {
  held_ += first_ ? tokenizer_.first_bytes_of(id) : tokenizer_.bytes_of(id);
  first_ = first_ && tokenizer_.bytes_of(id).empty();
  const size_t whole = whole_characters(held_);
  std::string out = held_.substr(0, whole);
  held_.erase(0, whole);
  return out;
}

std::string StreamDecoder::finish() { return std::exchange(held_, {}); }

std::string tokenizer_file_in(const std::string& folder) {
  for (const char* name : {"tokenizer.json", "tokenizer.model"})
    if (fs::path file = fs::path(folder) / name; fs::is_regular_file(file)) return file.string();
  return {};
}

std::unique_ptr<Tokenizer> open_tokenizer(const std::string& path) {
  if (path == "byte") return std::make_unique<ByteTokenizer>();
  std::string file = path;
  if (fs::is_directory(path)) {
    file = tokenizer_file_in(path);
    require(!file.empty(), Exit::usage,
            "{}: contains neither a tokenizer.json nor a tokenizer.model; give a tokenizer file, or \"byte\"",
            path);
  }
  require(fs::exists(file), Exit::usage,
          "{}: does not exist; give a tokenizer.json, a tokenizer.model, a folder with one, or \"byte\"",
          path);
  if (fs::path(file).extension() == ".model") return open_sentencepiece(file);
  return open_json_tokenizer(file);
}

}  // namespace cleave::text
