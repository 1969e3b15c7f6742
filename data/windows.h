// Windows of a token file for next-token prediction: seq_len + 1 tokens at stride seq_len, so that every
// token except the first is a target exactly once. The rest after the last whole window is not used, or is
// one more sample with padding: a separate document of token 0 without targets.
#pragma once
#include <algorithm>

#include "data/samples.h"

namespace cleave::data {

class Windows final : public Samples {
 public:
  Windows(const TokenFile& file, int64_t seq_len, bool fill_last = false)
      : file_(&file), seq_len_(seq_len), fill_last_(fill_last) {}

  int64_t size() const override { return fill_last_ ? ceil_div(targets(), seq_len_) : targets() / seq_len_; }

  // input[t] = token window * seq_len + t, targets[t] = the next one. A document that started before the
  // window starts at its first position.
  void read(int64_t window, const SampleRow& row) const override;

 private:
  int64_t targets() const { return std::max<int64_t>(0, file_->size() - 1); }  // of the file
  void mark_documents(int64_t begin, const SampleRow& row) const;

  const TokenFile* file_;
  int64_t seq_len_;
  bool fill_last_;
};

// Throws Error(usage) for a seq_len below 1, and Error(data) if the file is shorter than one sample.
Windows windows_of(const TokenFile& file, int64_t seq_len, bool fill_last = false);

}  // namespace cleave::data
