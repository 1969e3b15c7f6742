// A corpus as a sequence of token ids, whatever format it is in. Six kinds are read, told apart by their
// first bytes and their name; a plain text is its own token file, one byte one token.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "core/input_file.h"
#include "core/range.h"
#include "data/document_index.h"
#include "data/loss_mask.h"

namespace cleave::data {

class TokenFile {
 public:
  enum class Kind {
    bytes,     // any file: 256 tokens
    u16,       // nanoGPT: little-endian uint16, no header
    u32,       // the same with uint32
    llmc_u16,  // llm.c: 256 int32 (20240520, 1, count, vocabulary), then uint16
    llmc_u32,  // llm.c for Llama 3: 256 int32 (20240801, 7, count, vocabulary), then uint32
    indexed    // Megatron: NAME.bin with NAME.idx beside it (data/indexed_file.h)
  };
  enum class Format { detect, bytes, u16, llmc };

  struct Options {
    // detect: indexed by its .idx, llm.c by its magic number, otherwise no header when the name ends in .bin,
    // otherwise bytes.
    Format format = Format::detect;
    // 2 or 4: of a file without a header; 0: the width whose ids fit `bound`. Error(usage) if both widths do.
    int token_bytes = 0;
    int64_t bound = 0;      // the model's vocabulary for that, if it is known before `vocab` is
    int64_t vocab = 0;      // of the model; 0 = what the header says, or the largest the format is meant for
    std::string name = {};  // by which errors in its tokens call it: the text it was made of; empty: its path
  };
  // The vocabulary of a file of 32-bit ids that does not say it.
  static constexpr int64_t kUnknownVocab = int64_t{1} << 31;

  // Checks the file's header and size; throws Error(data) naming the file and what to do. Token ids are
  // checked when they are read, so that opening a large corpus does not read it.
  explicit TokenFile(const std::string& path) : TokenFile(path, Options{}) {}
  TokenFile(const std::string& path, Options options);

  Kind kind() const { return kind_; }
  int64_t size() const { return size_; }  // tokens
  int64_t token_bytes() const;
  int64_t vocab() const { return vocab_; }  // every id read is below it
  const std::string& path() const { return file_.path(); }
  const std::string& name() const { return name_; }
  std::string describe() const;  // "corpus.bin: 1234 tokens, llm.c uint16, vocabulary 50257"

  // Tokens [range.begin, range.end), which must lie in the file. Throws Error(data) when an id is not below
  // vocab(), and when the file was cut short meanwhile. Safe from several threads.
  void read(Range range, int32_t* out) const;
  int32_t at(int64_t index) const;

  // Reads all of it: Error(data) names the first id that is not below vocab().
  void check_all() const;
  void note_contents();  // as InputFile, for
  // Error(data) when the file was written to or replaced since it was opened.
  void require_unchanged() const;
  // True of kinds whose file does not say its vocabulary, and which may have any id below vocab().
  bool vocab_is_a_guess() const { return headerless() || kind_ == Kind::indexed; }

  // Where documents begin; null where the file does not say.
  const DocumentIndex* documents() const { return index_ ? &*index_ : nullptr; }
  // Whether some tokens may have no loss; read_mask() says which, with 1 where there is one.
  bool masked() const { return mask_.has_value(); }
  void read_mask(Range range, uint8_t* out) const;

 private:
  bool headerless() const { return kind_ == Kind::u16 || kind_ == Kind::u32; }
  void open_indexed();
  void choose_width(const Options& options);
  template <class T>
  bool fits(int64_t bound) const;
  void detect(Format format, std::span<const uint8_t> head);
  int64_t default_vocab() const;
  void read_wide(Range range, int32_t* out) const;
  void read_llmc_header(std::span<const uint8_t> head);
  [[noreturn]] void fail_at(int64_t index, int64_t token) const;

  InputFile file_;
  std::string name_;
  std::optional<DocumentIndex> index_;
  std::optional<LossMask> mask_;
  Kind kind_ = Kind::bytes;
  int64_t size_ = 0, vocab_ = 0;
  int64_t first_ = 0;  // byte of the first token
};

std::string_view name_of(TokenFile::Kind kind);

// Writes an llm.c token file: uint16 when every id is below 50257, uint32 otherwise. The file appears under
// its name only when it is complete. Throws Error(data) for a negative id, no tokens or more than 2^31 - 1,
// an id outside the vocabulary, and when it cannot be written. A `vocab` above 0 is the tokenizer's and goes
// into the header's fourth word, which llm.c leaves 0 and does not read.
void write_llmc(const std::string& path, std::span<const int32_t> tokens, int64_t vocab = 0);

}  // namespace cleave::data
