// Megatron's indexed data set: NAME.bin has the tokens of all documents back to back, NAME.idx their start
// positions. Megatron-LM, GPT-NeoX, NeMo and DeepSpeed write and read this format.
//
//   .idx, little-endian and not aligned: "MMIDIDX\0\0", uint64 version 1, uint8 type of a token,
//   uint64 S sequences, uint64 D = documents + 1, then
//     int32 length[S]      tokens of each sequence
//     int64 pointer[S]     byte offset of each sequence in .bin
//     int64 document[D]    first sequence of each document; the last value is S
//
// An optional third file, NAME.mask, is an extension of Cleave: one bit per token of .bin, lowest bit of a
// byte first, unused bits 0. A token with bit 0 is an input, but predicting it has no loss. Without the file,
// every token has a loss.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace cleave::data {

// The file names for NAME, NAME.bin or NAME.idx.
struct IndexedNames {
  std::string bin, idx, mask;
};
IndexedNames indexed_names(const std::string& name);
// True if the name means an indexed data set: its .idx exists and belongs to no other file.
bool is_indexed(const std::string& name);

// Writes a data set sequentially. finish() replaces an existing data set, which stays until then; a writer
// that is destroyed without finish() leaves nothing. Memory use does not grow with the data. Throws
// Error(data).
class IndexedWriter {
 public:
  // `name` is NAME or NAME.bin. Tokens are uint16 if the vocabulary has fewer than 65500 entries and int32
  // otherwise (Megatron's rule), unless token_bytes is 2 or 4.
  IndexedWriter(const std::string& name, int64_t vocab, int64_t token_bytes = 0);
  ~IndexedWriter();
  IndexedWriter(const IndexedWriter&) = delete;
  IndexedWriter& operator=(const IndexedWriter&) = delete;

  // Appends tokens to the current document. A 0 in `mask` means that predicting the token has no loss; the
  // mask is as long as the tokens, or empty if all have a loss.
  void append(std::span<const int32_t> tokens, std::span<const uint8_t> mask = {});
  // Ends the current document; an empty one is omitted.
  void end_document();
  // Ends the last document and makes the files visible. No more tokens can be appended.
  void finish();

  int64_t tokens() const;
  int64_t documents() const;  // completed documents

 private:
  struct Files;
  std::unique_ptr<Files> files_;
};

}  // namespace cleave::data
