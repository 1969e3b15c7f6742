#include "config_schema/utf8.h"

namespace cleave::config {

void append_utf8(std::string& out, uint32_t code) {
  if (code < 0x80) {
    out += char(code);
  } else if (code < 0x800) {
    out += char(0xC0 | code >> 6), out += char(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    out += char(0xE0 | code >> 12), out += char(0x80 | (code >> 6 & 0x3F)), out += char(0x80 | (code & 0x3F));
  } else {
    out += char(0xF0 | code >> 18), out += char(0x80 | (code >> 12 & 0x3F));
    out += char(0x80 | (code >> 6 & 0x3F)), out += char(0x80 | (code & 0x3F));
  }
}

size_t utf8_length(std::string_view s) {
  const auto byte = [&](size_t i) { return i < s.size() ? uint8_t(s[i]) : uint8_t{0}; };
  const auto tail = [&](size_t i) { return (byte(i) & 0xC0) == 0x80; };
  const uint8_t c = byte(0);
  if (c < 0x80) return 1;
  if (c >= 0xC2 && c <= 0xDF) return tail(1) ? 2 : 0;
  if (c >= 0xE0 && c <= 0xEF) {
    const bool bad = (c == 0xE0 && byte(1) < 0xA0) || (c == 0xED && byte(1) > 0x9F);
    return !bad && tail(1) && tail(2) ? 3 : 0;
  }
  const bool bad = c < 0xF0 || c > 0xF4 || (c == 0xF0 && byte(1) < 0x90) || (c == 0xF4 && byte(1) > 0x8F);
  return !bad && tail(1) && tail(2) && tail(3) ? 4 : 0;
}

}  // namespace cleave::config
