// Megatron's indexed data set: NAME.bin has the tokens of all documents back to back, NAME.idx says where
// each begins. Megatron-LM, GPT-NeoX, NeMo and DeepSpeed write and read this format.
//
//   .idx, little-endian and not aligned: "MMIDIDX\0\0", uint64 version 1, uint8 type of a token,
//   uint64 S sequences, uint64 D = documents + 1, then
//     int32 length[S]      tokens of each sequence
//     int64 pointer[S]     the byte of .bin where each begins
//     int64 document[D]    the sequence with which each document begins; the last is S
//
// Beside the two there may be NAME.mask, which is Cleave's own: a bit for each token of .bin, the lowest bit
// of a byte first, unused ones 0. A token whose bit is 0 is read, but predicting it has no loss. Without the
// file every token has one.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace cleave::data {

// The two other names of NAME, NAME.bin or NAME.idx.
struct IndexedNames {
  std::string bin, idx, mask;
};
IndexedNames indexed_names(const std::string& name);
// Whether the name stands for an indexed data set: an .idx lies beside it, and it is no other file's.
bool is_indexed(const std::string& name);

// Writes a data set from its beginning to its end. What was there under the name is replaced when it is
// finished, and stays until then; one that is given up leaves nothing. Memory does not grow with the data.
// Everything that goes wrong is Error(data).
class IndexedWriter {
 public:
  // NAME, or NAME.bin. Tokens are uint16 where the vocabulary has less than 65500 entries, and int32
  // otherwise, which is
  // Megatron's rule, unless token_bytes says 2 or 4.
  IndexedWriter(const std::string& name, int64_t vocab, int64_t token_bytes = 0);
  ~IndexedWriter();
  IndexedWriter(const IndexedWriter&) = delete;
  IndexedWriter& operator=(const IndexedWriter&) = delete;

  // More of the current document. Of a mask, 0 says that predicting the token has no loss; it is as long as
  // the tokens, or empty where all have one.
  void append(std::span<const int32_t> tokens, std::span<const uint8_t> mask = {});
  // One without tokens is left out.
  void end_document();
  // Ends the last document. Afterwards the files are there, and nothing more can be appended.
  void finish();

  int64_t tokens() const;
  int64_t documents() const;  // that were ended

 private:
  struct Files;
  std::unique_ptr<Files> files_;
};

}  // namespace cleave::data
