#include "data/windows.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

namespace cleave::data {

void Windows::read(int64_t window, const SampleRow& row) const {
  CHECK(0 <= window && window < size(), "window {} of {}", window, size());
  const int64_t begin = window * seq_len_, filled = std::min(seq_len_, targets() - begin);
  file_->read({begin, begin + filled}, row.input);
  std::memcpy(row.targets, row.input + 1, size_t(filled - 1) * sizeof(int32_t));
  row.targets[filled - 1] = file_->at(begin + filled);
  if (row.documents) mark_documents(begin, row);
  std::fill(row.input + filled, row.input + seq_len_, 0);
  std::fill(row.targets + filled, row.targets + seq_len_, kIgnoredTarget);
  if (row.documents) std::fill(row.documents + filled, row.documents + seq_len_, int32_t(filled));
  if (!file_->masked()) return;
  std::vector<uint8_t> mask(static_cast<size_t>(filled));
  file_->read_mask(Range{begin, begin + filled}.shifted(1), mask.data());
  for (int64_t t = 0; t < filled; ++t)
    if (!mask[size_t(t)]) row.targets[t] = kIgnoredTarget;
}

void Windows::mark_documents(int64_t begin, const SampleRow& row) const {
  const DocumentIndex& index = *file_->documents();
  std::fill_n(row.documents, seq_len_, 0);
  std::array<int64_t, 64> begins;
  int64_t next = index.document_from(begin + 1);
  for (bool more = true; more; next += int64_t(begins.size())) {
    index.begins(next, begins);
    for (const int64_t token : begins) {
      const int64_t position = token - begin;
      more = position <= seq_len_ && token < index.tokens();
      if (!more) break;
      row.targets[position - 1] = kIgnoredTarget;
      if (position < seq_len_)
        std::fill(row.documents + position, row.documents + seq_len_, int32_t(position));
    }
  }
}

Windows windows_of(const TokenFile& file, int64_t seq_len, bool fill_last) {
  require(seq_len >= 1, Exit::usage, "--seq_len: must be at least 1 (got {})", seq_len);
  const Windows windows(file, seq_len, fill_last);
  require(windows.size() > 0, Exit::data, "{}: has {} tokens, but one sample needs {}; use a longer text{}",
          file.name(), file.size(),
          fill_last ? "2: one to predict and one before it"
                    : fmt::format("{} (--seq_len {} and the token after it)", seq_len + 1, seq_len),
          fill_last ? "" : fmt::format(" or --seq_len {} or less", std::max<int64_t>(1, file.size() - 1)));
  return windows;
}

}  // namespace cleave::data
