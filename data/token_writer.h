// Writes an llm.c token file from its beginning to its end, in memory that does not grow with it. The file
// appears under its name when it is finished; one that is given up leaves nothing.
#pragma once
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <vector>

namespace cleave::data {

class TokenWriter {
 public:
  // `vocab` is the tokenizer's and goes into the header; 0: unknown. Tokens are uint16 where `narrow`, else
  // uint32. Error(data) when the file cannot be written.
  TokenWriter(std::string path, int64_t vocab, bool narrow);
  // Narrow where the vocabulary is no larger than GPT-2's: what llm.c reads.
  TokenWriter(const std::string& path, int64_t vocab);
  ~TokenWriter();
  TokenWriter(const TokenWriter&) = delete;
  TokenWriter& operator=(const TokenWriter&) = delete;

  // More of the current document. Error(data) for a token outside of the vocabulary, for more than 2^31 - 1
  // tokens, and when the file cannot be written.
  void append(std::span<const int32_t> tokens);
  // The format has no place for boundaries: they are counted, and a token that ends a text marks them.
  void end_document() { ++documents_; }
  // Afterwards the file is there. Error(data) where nothing was appended.
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
