// UTF-8 (RFC 3629).
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace cleave::config {

void append_utf8(std::string& out, uint32_t code);

// Length of the sequence at the beginning of s, or 0 when it is none: overlong forms and surrogates are not.
size_t utf8_length(std::string_view s);

}  // namespace cleave::config
