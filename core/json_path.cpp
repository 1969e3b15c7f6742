#include "core/json_path.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cstdint>

namespace cleave {
namespace {

// Length in bytes of the UTF-8 character at the start of the text (Unicode 15, table 3-7); 0 if invalid.
size_t character_at(std::string_view text) {
  const auto byte = [&](size_t i) { return i < text.size() ? uint8_t(text[i]) : uint8_t{0}; };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return 1;
  const size_t bytes = lead < 0xC2 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF5 ? 4 : 0;
  const uint8_t least = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;  // no overlong form
  const uint8_t most = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;   // no surrogate; at most U+10FFFF
  if (bytes == 0 || byte(1) < least || byte(1) > most) return 0;
  for (size_t i = 2; i < bytes; ++i)
    if ((byte(i) & 0xC0) != 0x80) return 0;
  return bytes;
}

}  // namespace

std::string path_in_json(std::string_view path) {
  std::string out;
  while (!path.empty()) {
    const size_t bytes = character_at(path);
    if (bytes == 0 || path.starts_with("\\x"))
      out += fmt::format("\\x{:02x}", uint8_t(path[0]));
    else
      out += path.substr(0, bytes);
    path.remove_prefix(std::max<size_t>(1, bytes));
  }
  return out;
}

std::string path_from_json(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    uint8_t byte = 0;
    const char* digits = text.data() + 2;
    if (text.size() >= 4 && text.starts_with("\\x") &&
        std::from_chars(digits, digits + 2, byte, 16).ptr == digits + 2) {
      out += char(byte);
      text.remove_prefix(4);
    } else {
      out += text[0];
      text.remove_prefix(1);
    }
  }
  return out;
}

}  // namespace cleave
