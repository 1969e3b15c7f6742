// Converts text to token ids and back.
//
//   const auto tokenizer = open_tokenizer("model/tokenizer.json");
//   const std::vector<int32_t> ids = tokenizer->encode("Some text");
//
// Ids equal those of the tokenizers library (tokenizer.json) and of the sentencepiece library
// (tokenizer.model). Both take text, not bytes; invalid UTF-8 is decoded like Python's bytes.decode("utf-8",
// errors="replace"), with U+FFFD for invalid bytes. The tokenizer "byte" takes bytes unchanged.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace cleave::text {

struct EncodeOptions {
  // Special tokens in the text become that token; otherwise their names are ordinary text.
  bool special_tokens = true;
  // Adds the tokens that the tokenizer's file puts before and after a text, such as a begin-of-text token.
  bool frame = false;
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Appends the ids of a text. Thread-safe.
  virtual void encode(std::string_view text, const EncodeOptions& options,
                      std::vector<int32_t>& out) const = 0;
  std::vector<int32_t> encode(std::string_view text, const EncodeOptions& options = {}) const;

  // Bytes of a token inside of a text; empty for an id without a token.
  virtual std::string_view bytes_of(int32_t id) const = 0;
  // True if the token is metadata, not a part of the text.
  virtual bool is_special(int32_t id) const = 0;
  // Bytes of a token at the start of a text; some tokenizers omit a blank there that they added.
  virtual std::string_view first_bytes_of(int32_t id) const { return bytes_of(id); }
  // Concatenation of the tokens' bytes, without special tokens if `special` is false.
  std::string decode(std::span<const int32_t> ids, bool special = true) const;

  virtual int64_t vocab_size() const = 0;  // all ids are below it
  // Token at the end of a document, if the tokenizer has one.
  virtual std::optional<int32_t> end_of_text() const = 0;
  // Differs between tokenizers that give different ids.
  virtual uint64_t digest() const = 0;
  virtual std::string describe() const = 0;  // "byte-level BPE, vocabulary 50257"
  // True if a text can be cut after a newline that follows a character other than white space and precedes an
  // ASCII letter: the parts then have the ids of the whole.
  virtual bool can_cut_at_lines() const = 0;

  const std::string& path() const { return path_; }  // "byte" or the file

 protected:
  explicit Tokenizer(std::string path) : path_(std::move(path)) {}

 private:
  std::string path_;
};

// Opens "byte", a tokenizer.json, a SentencePiece tokenizer.model, or a folder with one of them (in this
// order). Throws Error(data), which names the file, a fault or an unsupported feature, and a fix;
// Error(usage) if the file does not exist.
std::unique_ptr<Tokenizer> open_tokenizer(const std::string& path);

// Tokenizer file of a folder, the first that exists; empty if none.
std::string tokenizer_file_in(const std::string& folder);

// Decodes ids one by one into complete characters.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  // Text that the token adds; keeps bytes of an incomplete character for the next call.
  std::string add(int32_t id);
  // Remaining bytes at the end.
  std::string finish();

 private:
  const Tokenizer& tokenizer_;
  std::string held_;
  bool first_ = true;
};

}  // namespace cleave::text
