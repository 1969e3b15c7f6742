// Packs documents into samples of seq_len positions, in file order, and cuts only documents that do not fit:
// a document of n tokens has n - 1 positions, and each predicts the next token. A document with more than
// seq_len positions is cut from its start into pieces of seq_len and a remainder. A sample takes pieces as
// long as the next one fits; the rest is padding. Every token except the first of each document is a target
// exactly once, and none is predicted from another document.
#pragma once
#include <vector>

#include "data/samples.h"

namespace cleave::data {

class PackedDocuments final : public Samples {
 public:
  // Reads the index once. Throws Error(data) if no document has two tokens. The file must outlive this
  // object.
  PackedDocuments(const TokenFile& file, int64_t seq_len);

  int64_t size() const override { return samples_; }
  // Padding is a separate document of token 0.
  void read(int64_t sample, const SampleRow& row) const override;

  // Share of positions with a target.
  double filled() const { return double(targets_) / double(samples_ * seq_len_); }

 private:
  // Start of a sample: a document, and the number of its positions in earlier samples.
  struct Beginning {
    int64_t document = 0, done = 0;
  };
  // A run of tokens inside one sample, plus the target of its last position.
  struct Piece {
    int64_t token = 0, positions = 0;
  };
  class Walk;

  const TokenFile* file_;
  int64_t seq_len_;
  int64_t samples_ = 0, targets_ = 0;
  std::vector<Beginning> starts_;  // of every kStride-th sample
};

}  // namespace cleave::data
