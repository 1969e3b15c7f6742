#pragma once
#include <string>
#include <string_view>

namespace cleave::config {

// Decodes base64 (RFC 4648) in the URL or the standard alphabet; empty if invalid.
std::string decode_base64(std::string_view text);
// Encodes in the URL alphabet, with padding.
std::string encode_base64(std::string_view bytes);

}  // namespace cleave::config
