#include "data/split_text.h"

namespace cleave::data {
namespace {

constexpr int64_t kBlocks = 20, kValidateEvery = 10;

// Start of block `block`.
int64_t cut(std::string_view text, int64_t block) {
  const int64_t size = int64_t(text.size());
  const int64_t wanted = block * size / kBlocks, next = (block + 1) * size / kBlocks;
  if (block == 0 || block == kBlocks) return wanted;
  // A line that ends exactly at the wanted position needs no move.
  for (int64_t at = wanted; at < next; ++at)
    if (at > 0 && text[size_t(at - 1)] == '\n') return at;
  return wanted;
}

void add(std::vector<Range>& ranges, Range range) {
  if (range.empty()) return;
  if (!ranges.empty() && ranges.back().end == range.begin)
    ranges.back().end = range.end;
  else
    ranges.push_back(range);
}

}  // namespace

TextSplit split_text(std::string_view text) {
  TextSplit split;
  for (int64_t block = 0; block < kBlocks; ++block)
    add(block % kValidateEvery == kValidateEvery - 1 ? split.validation : split.train,
        {cut(text, block), cut(text, block + 1)});
  return split;
}

std::string cut_out(std::string_view text, const std::vector<Range>& ranges) {
  std::string out;
  for (const Range& range : ranges) out.append(text.substr(size_t(range.begin), size_t(range.size())));
  return out;
}

}  // namespace cleave::data
