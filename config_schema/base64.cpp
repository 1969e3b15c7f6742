#include "config_schema/base64.h"

#include <cstdint>

namespace cleave::config {
namespace {

int value_of(char c) {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return c - 'a' + 26;
  if (c >= '0' && c <= '9') return c - '0' + 52;
  if (c == '-' || c == '+') return 62;
  return c == '_' || c == '/' ? 63 : -1;
}

}  // namespace

std::string decode_base64(std::string_view text) {
  while (!text.empty() && text.back() == '=') text.remove_suffix(1);
  std::string out;
  uint32_t bits = 0;
  int held = 0;
  for (const char c : text) {
    const int value = value_of(c);
    if (value < 0) return {};
    bits = bits << 6 | uint32_t(value), held += 6;
    if (held >= 8) out += char(bits >> (held -= 8) & 0xFF);
  }
  return text.size() % 4 == 1 ? "" : out;
}

std::string encode_base64(std::string_view bytes) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    const std::string_view part = bytes.substr(i, 3);
    uint32_t bits = 0;
    for (size_t b = 0; b < 3; ++b) bits = bits << 8 | (b < part.size() ? uint8_t(part[b]) : 0u);
    for (size_t d = 0; d < 4; ++d) out += d <= part.size() ? kDigits[bits >> (18 - 6 * d) & 63] : '=';
  }
  return out;
}

}  // namespace cleave::config
