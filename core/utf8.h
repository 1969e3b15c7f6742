// Reads and writes UTF-8 (RFC 3629); accepts invalid bytes.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace cleave {

// Returns `bytes` if it is valid UTF-8. Otherwise returns `scratch`: a copy with one U+FFFD for each maximal
// run of bytes that begins a character without completing it, and for each other invalid byte, like Python's
// bytes.decode("utf-8", errors="replace").
std::string_view valid_utf8(std::string_view bytes, std::string& scratch);

// Number of bytes without an incomplete last character.
size_t whole_characters(std::string_view bytes);

struct Character {
  char32_t code = 0;
  int bytes = 1;
};
// Returns the first character of a nonempty valid text; otherwise U+FFFD with one byte.
Character first_character(std::string_view text);

// Unicode's White_Space property.
bool is_white_space(char32_t code);

void append_utf8(std::string& out, char32_t code);

// Length in bytes of the first character; 0 if the text is empty or begins with an overlong form, a surrogate
// or a partial character.
size_t utf8_length(std::string_view text);

}  // namespace cleave
