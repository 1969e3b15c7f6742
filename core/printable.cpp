#include "core/printable.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdint>

namespace cleave {
namespace {

// Length in bytes of the UTF-8 sequence at the start of the text; 0 if invalid.
size_t sequence_at(std::string_view text) {
  const auto lead = uint8_t(text[0]);
  const size_t bytes = lead < 0x80   ? 1
                       : lead < 0xC2 ? 0
                       : lead < 0xE0 ? 2
                       : lead < 0xF0 ? 3
                       : lead < 0xF5 ? 4
                                     : 0;
  if (bytes == 0 || bytes > text.size()) return 0;
  for (size_t i = 1; i < bytes; ++i)
    if ((uint8_t(text[i]) & 0xC0) != 0x80) return 0;
  return bytes;
}

std::string escaped(std::string_view text, std::string_view kept, std::string_view also_escaped) {
  std::string out;
  while (!text.empty()) {
    const char c = text[0];
    const size_t bytes = sequence_at(text);
    const bool control = uint8_t(c) < 0x20 || c == 0x7f;
    // C1 controls (two bytes in UTF-8) also move a terminal's cursor.
    const bool control_of_two = bytes == 2 && uint8_t(c) == 0xC2 && uint8_t(text[1]) < 0xA0;
    if (bytes == 0 || (control && kept.find(c) == kept.npos) || also_escaped.find(c) != also_escaped.npos)
      out += fmt::format("\\x{:02x}", uint8_t(c));
    else if (control_of_two)
      out += fmt::format("\\x{:02x}\\x{:02x}", uint8_t(c), uint8_t(text[1]));
    else
      out += text.substr(0, bytes);
    text.remove_prefix(std::max<size_t>(1, bytes));
  }
  return out;
}

}  // namespace

std::string in_quotes(std::string_view bytes, size_t most) {
  return fmt::format("'{}{}'", escaped(bytes.substr(0, most), "", "'\\"), bytes.size() > most ? "..." : "");
}

std::string in_line(std::string_view bytes, size_t most) {
  return escaped(bytes.substr(0, most), "", "") + (bytes.size() > most ? "..." : "");
}

std::string printable(std::string_view text) { return escaped(text, "\n\t", ""); }

}  // namespace cleave
