// UTF-8 (RFC 3629) of any origin.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace cleave {

// The text itself where it is UTF-8. Otherwise `scratch`, with U+FFFD instead of every longest run of
// bytes that begins a character and does not end it, and of every other byte that belongs to none: what
// Python's bytes.decode("utf-8", errors="replace") gives.
std::string_view valid_utf8(std::string_view bytes, std::string& scratch);

// Bytes before a last character that is not complete yet; all of them where there is none.
size_t whole_characters(std::string_view bytes);

struct Character {
  char32_t code = 0;
  int bytes = 1;
};
// The first one of a text that is UTF-8 and not empty; otherwise U+FFFD of one byte.
Character first_character(std::string_view text);

// Unicode's White_Space.
bool is_white_space(char32_t code);

void append_utf8(std::string& out, char32_t code);

// Length of the character at the beginning of the text; 0 if the text is empty or begins with an overlong
// form, a surrogate or a part of a character.
size_t utf8_length(std::string_view text);

}  // namespace cleave
