#include "data/windows.h"

#include <cstring>

namespace cleave {

void Windows::read(int64_t window, int32_t* input, int32_t* targets) const {
  CHECK(0 <= window && window < size(), "window {} of {}", window, size());
  const int64_t begin = window * seq_len;
  file->read({begin, begin + seq_len}, input);
  std::memcpy(targets, input + 1, size_t(seq_len - 1) * sizeof(int32_t));
  targets[seq_len - 1] = file->at(begin + seq_len);
}

Windows windows_of(const TokenFile& file, int64_t seq_len) {
  require(seq_len >= 1, Exit::usage, "--seq_len is {}; it must be at least 1", seq_len);
  const Windows windows{.file = &file, .seq_len = seq_len};
  require(windows.size() > 0, Exit::data,
          "{}: has {} tokens, but one sample needs {} (--seq_len {} and the token after it); use a longer "
          "text or "
          "--seq_len {} or less",
          file.path(), file.size(), seq_len + 1, seq_len, std::max<int64_t>(1, file.size() - 1));
  return windows;
}

}  // namespace cleave
