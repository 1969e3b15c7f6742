#pragma once
#include <string>
#include <string_view>

namespace cleave::config {

// The bytes of a base64 text (RFC 4648), of the alphabet for URLs or the other one; empty when it is none.
std::string decode_base64(std::string_view text);
// In the alphabet for URLs, padded.
std::string encode_base64(std::string_view bytes);

}  // namespace cleave::config
