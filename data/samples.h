// Samples of a token file: seq_len positions each, for next-token prediction.
#pragma once
#include <memory>

#include "data/token_file.h"
#include "device/batch.h"

namespace cleave::data {

struct SampleOptions {
  int64_t seq_len = 0;
  // Keeps documents whole if they fit into a sample (data/packed_documents.h); otherwise samples are windows
  // over all tokens, across documents (data/windows.h).
  bool pack = false;
  // Samples mark document starts, and no position predicts the first token of the next document.
  bool document_mask = false;
  // For windows: the rest after the last whole window is also a sample, with padding.
  bool fill_last = false;
};

// Destination of a sample: arrays of seq_len elements. A target without a loss is kIgnoredTarget: tokens
// hidden by the file's loss mask, the target after the last token of a document if samples mark documents,
// and padding.
struct SampleRow {
  int32_t *input, *targets;
  int32_t* documents = nullptr;  // as in AttentionMask; only with document_mask
};

class Samples {
 public:
  virtual ~Samples() = default;
  virtual int64_t size() const = 0;
  // Thread-safe. Throws the errors of TokenFile::read.
  virtual void read(int64_t sample, const SampleRow& row) const = 0;
};

// The file must outlive the result. Throws Error(data) if the file is shorter than a sample, or has no
// documents although options need them, and Error(usage) for a seq_len below 1.
std::unique_ptr<Samples> samples_of(const TokenFile& file, const SampleOptions& options);

}  // namespace cleave::data
