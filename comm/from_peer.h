// Validates lengths and strings from other ranks. None is trusted: a rank may be broken or run another
// version.
#pragma once
#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "core/error.h"

namespace cleave::comm {

inline constexpr int64_t kLongestText = int64_t{64} << 20;

// String in a fixed-size field, with or without a terminating 0.
inline std::string text_from_peer(std::span<const char> field) {
  return {field.begin(), std::find(field.begin(), field.end(), '\0')};
}

inline size_t length_from_peer(int64_t bytes, std::string_view what) {
  require(bytes >= 0 && bytes <= kLongestText, Exit::internal,
          "{}: a rank sent an invalid length (got {} bytes, expected 0 to {}); restart the job", what, bytes,
          kLongestText);
  return size_t(bytes);
}

}  // namespace cleave::comm
