// A token file as samples for next-token prediction: windows of seq_len + 1 tokens at stride seq_len, so that
// every token but the first is a target exactly once. Tokens after the last whole window are not used.
#pragma once
#include "data/token_file.h"
#include "device/batch.h"

namespace cleave {

struct Windows {
  const TokenFile* file = nullptr;  // must outlive this
  int64_t seq_len = 0;

  int64_t size() const { return file->size() > 0 ? (file->size() - 1) / seq_len : 0; }

  // input[t] = token window * seq_len + t, targets[t] the one after it; both [seq_len].
  void read(int64_t window, int32_t* input, int32_t* targets) const;
};

// Throws Error(usage) for a seq_len below 1 and Error(data) when the file is shorter than one window.
Windows windows_of(const TokenFile& file, int64_t seq_len);

}  // namespace cleave
