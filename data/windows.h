// A token file as samples for next-token prediction: windows of seq_len + 1 tokens at stride seq_len, so that
// every token but the first is a target exactly once. Tokens after the last whole window are not used.
#pragma once
#include "data/samples.h"

namespace cleave {

class Windows final : public Samples {
 public:
  Windows(const TokenFile& file, int64_t seq_len) : file_(&file), seq_len_(seq_len) {}

  int64_t size() const override { return file_->size() > 0 ? (file_->size() - 1) / seq_len_ : 0; }

  // input[t] = token window * seq_len + t, targets[t] the one after it. A document that began before the
  // window begins at its first position.
  void read(int64_t window, const SampleRow& row) const override;

 private:
  void mark_documents(int64_t begin, const SampleRow& row) const;

  const TokenFile* file_;
  int64_t seq_len_;
};

// Throws Error(usage) for a seq_len below 1 and Error(data) when the file is shorter than one window.
Windows windows_of(const TokenFile& file, int64_t seq_len);

}  // namespace cleave
