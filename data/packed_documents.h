// Documents packed into samples of seq_len positions, in the file's order and without cutting what fits: a
// document of n tokens has n - 1 positions, each of which predicts the next token. One with more than seq_len
// is cut from its beginning into pieces of seq_len positions and a rest. A sample takes pieces as long as the
// next one fits; what is left of it is padding. So every token but the first of each document is a target
// exactly once, and none is predicted from another document.
#pragma once
#include <vector>

#include "data/samples.h"

namespace cleave::data {

class PackedDocuments final : public Samples {
 public:
  // Reads the index once. Error(data) where no document has two tokens. The file must outlive this.
  PackedDocuments(const TokenFile& file, int64_t seq_len);

  int64_t size() const override { return samples_; }
  // Padding is a document of its own, of token 0.
  void read(int64_t sample, const SampleRow& row) const override;

  // The share of all positions that predict something.
  double filled() const { return double(targets_) / double(samples_ * seq_len_); }

 private:
  // Where a sample begins: a document, and how many of its positions are in samples before.
  struct Beginning {
    int64_t document = 0, done = 0;
  };
  // A run of tokens that is in one sample, with the token that its last position predicts.
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
