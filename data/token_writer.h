// Writes an llm.c token file sequentially, in bounded memory. The file appears under its name in finish();
// without finish(), nothing remains.
#pragma once
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <vector>

namespace cleave::data {

class TokenWriter {
 public:
  // `vocab` is the tokenizer's and is stored in the header; 0: unknown. Tokens are uint16 if `narrow`, else
  // uint32. Throws Error(data) if the file cannot be written.
  TokenWriter(std::string path, int64_t vocab, bool narrow);
  // Narrow if the vocabulary is at most GPT-2's, which llm.c reads.
  TokenWriter(const std::string& path, int64_t vocab);
  ~TokenWriter();
  TokenWriter(const TokenWriter&) = delete;
  TokenWriter& operator=(const TokenWriter&) = delete;

  // Appends tokens to the current document. Throws Error(data) for a token outside of the vocabulary, for
  // more than 2^31 - 1 tokens, and for write errors.
  void append(std::span<const int32_t> tokens);
  // Only counts documents: the format stores no boundaries, and an end-of-text token marks them.
  void end_document() { ++documents_; }
  // Completes the file. Throws Error(data) if it has no tokens.
  void finish();

  int64_t tokens() const { return tokens_; }
  int64_t documents() const { return documents_; }

 private:
  [[noreturn]] void broken();
  void write(const void* bytes, size_t size);

  std::string path_, partial_;
  int64_t vocab_, tokens_ = 0, documents_ = 0;
  bool narrow_;
  std::FILE* file_ = nullptr;
  std::vector<uint16_t> shorts_;
};

}  // namespace cleave::data
