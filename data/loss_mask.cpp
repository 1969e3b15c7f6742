#include "data/loss_mask.h"

#include <vector>

namespace cleave::data {

LossMask::LossMask(const std::string& path, int64_t tokens) : file_(path, Exit::data), tokens_(tokens) {
  const int64_t wanted = ceil_div(tokens, 8);
  require(
      file_.size() == wanted, Exit::data,
      "{}: {} bytes, but a bit for each of {} tokens makes {}; it is of another data set, or damaged: write "
      "it again, or remove it to train on every token",
      path, file_.size(), tokens, wanted);
  if (tokens % 8 == 0) return;
  uint8_t last = 0;
  file_.read(wanted - 1, std::as_writable_bytes(std::span(&last, 1)));
  require(
      last >> (tokens % 8) == 0, Exit::data,
      "{}: byte {}: has bits for more than {} tokens; it is of another data set, or damaged: write it again",
      path, wanted - 1, tokens);
}

void LossMask::read(Range tokens, uint8_t* out) const {
  CHECK(0 <= tokens.begin && tokens.begin <= tokens.end && tokens.end <= tokens_, "mask of tokens [{}, {})",
        tokens.begin, tokens.end);
  const int64_t first = tokens.begin / 8;
  std::vector<uint8_t> bytes(size_t(ceil_div(tokens.end, 8) - first));
  file_.read(first, std::as_writable_bytes(std::span(bytes)));
  for (int64_t t = tokens.begin; t < tokens.end; ++t) *out++ = bytes[size_t(t / 8 - first)] >> (t % 8) & 1;
}

}  // namespace cleave::data
