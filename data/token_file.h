// A corpus as a sequence of token ids in any of six formats, which are detected by first bytes and name; a
// plain text is its own token file with one token per byte.
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
    u32,       // like u16, with uint32
    llmc_u16,  // llm.c: 256 int32 (20240520, 1, count, vocabulary), then uint16
    llmc_u32,  // llm.c for Llama 3: 256 int32 (20240801, 7, count, vocabulary), then uint32
    indexed    // Megatron: NAME.bin with NAME.idx (data/indexed_file.h)
  };
  enum class Format { detect, bytes, u16, llmc };

  struct Options {
    // detect: indexed if it has an .idx, llm.c by its magic number, otherwise without a header if the name
    // ends in .bin, otherwise bytes.
    Format format = Format::detect;
    // Token width of a file without a header, 2 or 4; 0: the width with ids below `bound`. Throws
    // Error(usage) if both widths fit.
    int token_bytes = 0;
    int64_t bound = 0;      // the model's vocabulary for `token_bytes`, if known before `vocab`
    int64_t vocab = 0;      // of the model; 0: from the header, or the format's maximum
    std::string name = {};  // name in errors about tokens, such as the source text; empty: the path
  };
  // Vocabulary of a file of 32-bit ids without this information.
  static constexpr int64_t kUnknownVocab = int64_t{1} << 31;

  // Checks header and size. Throws Error(data) with the file and a fix. Ids are checked when they are read,
  // so opening a large corpus does not read it.
  explicit TokenFile(const std::string& path) : TokenFile(path, Options{}) {}
  TokenFile(const std::string& path, Options options);

  Kind kind() const { return kind_; }
  int64_t size() const { return size_; }  // tokens
  int64_t token_bytes() const;
  int64_t vocab() const { return vocab_; }  // all ids that read() returns are below it
  const std::string& path() const { return file_.path(); }
  const std::string& name() const { return name_; }
  std::string describe() const;  // "corpus.bin: 1234 tokens, llm.c uint16, vocabulary 50257"

  // Reads tokens [range.begin, range.end), which must be in the file. Throws Error(data) if an id is not
  // below vocab() or the file was truncated meanwhile. Thread-safe.
  void read(Range range, int32_t* out) const;
  int32_t at(int64_t index) const;

  // Reads the whole file. Throws Error(data) with the first id that is not below vocab().
  void check_all() const;
  void note_contents();  // see InputFile; enables the next check
  // Throws Error(data) if the file was changed or replaced since it was opened.
  void require_unchanged() const;
  // True for formats without a vocabulary, which may contain any id below vocab().
  bool vocab_is_a_guess() const { return headerless() || kind_ == Kind::indexed; }

  // Document boundaries; null if the file has none.
  const DocumentIndex* documents() const { return index_ ? &*index_ : nullptr; }
  // True if tokens may have no loss; read_mask() returns 1 for tokens with a loss.
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
  int64_t first_ = 0;  // byte offset of the first token
};

std::string_view name_of(TokenFile::Kind kind);

// Writes an llm.c token file: uint16 if every id is below 50257, otherwise uint32. The file appears under its
// name when it is complete. Throws Error(data) for a negative id, no tokens or more than 2^31 - 1, an id
// outside of the vocabulary, and write errors. A positive `vocab` is the tokenizer's and is stored in the
// header's fourth word, which llm.c sets to 0 and does not read.
void write_llmc(const std::string& path, std::span<const int32_t> tokens, int64_t vocab = 0);

}  // namespace cleave::data
