// What a token file is cut into: samples of seq_len positions for next-token prediction.
#pragma once
#include <memory>

#include "data/token_file.h"
#include "device/batch.h"

namespace cleave::data {

struct SampleOptions {
  int64_t seq_len = 0;
  // Documents stay whole where they fit into a sample (data/packed_documents.h); otherwise samples are
  // windows over all tokens, whatever documents these belong to (data/windows.h).
  bool pack = false;
  // Samples say where documents begin, and no position predicts the first token of the next document.
  bool document_mask = false;
  // Windows: what is left behind the last whole one is a sample as well, filled up with padding.
  bool fill_last = false;
};

// A sample is written to arrays of seq_len elements. A target without a loss is kIgnoredTarget: of tokens
// that the file's loss mask hides, of the last token of a document where samples say where these begin, and
// of padding.
struct SampleRow {
  int32_t *input, *targets;
  int32_t* documents = nullptr;  // as AttentionMask has them; with document_mask only
};

class Samples {
 public:
  virtual ~Samples() = default;
  virtual int64_t size() const = 0;
  // Safe from several threads. Throws what TokenFile::read throws.
  virtual void read(int64_t sample, const SampleRow& row) const = 0;
};

// The file must outlive the result. Error(data) where it is shorter than a sample, or has no documents and is
// asked for them; Error(usage) for a seq_len below 1.
std::unique_ptr<Samples> samples_of(const TokenFile& file, const SampleOptions& options);

}  // namespace cleave::data
