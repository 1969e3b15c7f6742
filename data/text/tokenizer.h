// Text to token ids and back.
//
//   const auto tokenizer = open_tokenizer("model/tokenizer.json");
//   const std::vector<int32_t> ids = tokenizer->encode("Some text");
//
// Ids are those of the tokenizers library (tokenizer.json) and of the sentencepiece library
// (tokenizer.model). Both take text and not bytes; so a text that is not UTF-8 is read as Python's
// bytes.decode("utf-8", errors="replace") reads it, with U+FFFD for what is no character. The
// tokenizer "byte" takes bytes as they are.
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
  // A special token that stands in the text is that token; otherwise its name is text like any other.
  bool special_tokens = true;
  // What the tokenizer's file puts before and after a text, such as a token of its beginning.
  bool frame = false;
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Appends the ids of a text. Safe from several threads.
  virtual void encode(std::string_view text, const EncodeOptions& options,
                      std::vector<int32_t>& out) const = 0;
  std::vector<int32_t> encode(std::string_view text, const EncodeOptions& options = {}) const;

  // The bytes that a token stands for, inside of a text; none for an id that has no token.
  virtual std::string_view bytes_of(int32_t id) const = 0;
  // Whether the token says something about the text and is no part of it.
  virtual bool is_special(int32_t id) const = 0;
  // The same at the beginning of a text, where some leave out a blank that nobody wrote.
  virtual std::string_view first_bytes_of(int32_t id) const { return bytes_of(id); }
  // The bytes of the tokens one after the other; without special tokens where `special` is false.
  std::string decode(std::span<const int32_t> ids, bool special = true) const;

  virtual int64_t vocab_size() const = 0;  // every id is below it
  // What ends a document, where the tokenizer has such a token.
  virtual std::optional<int32_t> end_of_text() const = 0;
  // Two tokenizers that give other ids have another digest.
  virtual uint64_t digest() const = 0;
  virtual std::string describe() const = 0;  // "byte-level BPE, vocabulary 50257"
  // A text may be cut after a line end that follows a character and comes before an ASCII letter: the parts
  // have the ids of the whole.
  virtual bool can_cut_at_lines() const = 0;

  const std::string& path() const { return path_; }  // "byte", or the file

 protected:
  explicit Tokenizer(std::string path) : path_(std::move(path)) {}

 private:
  std::string path_;
};

// "byte", a tokenizer.json, a tokenizer.model of SentencePiece, or a folder with one of them (in this order).
// Error(data) names the file, what in it is wrong or not built, and what to do; Error(usage) where there is
// no such file.
std::unique_ptr<Tokenizer> open_tokenizer(const std::string& path);

// The file that a tokenizer is read from: in a folder, the first of those that are there. Empty where there
// is none.
std::string tokenizer_file_in(const std::string& folder);

// Text from ids that come one by one, in whole characters.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  // What the token adds to the text; the bytes of a character that is not complete are kept for the next.
  std::string add(int32_t id);
  // What is left at the end.
  std::string finish();

 private:
  const Tokenizer& tokenizer_;
  std::string held_;
  bool first_ = true;
};

}  // namespace cleave::text
