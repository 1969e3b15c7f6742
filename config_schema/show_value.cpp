// JSON values as messages show them.
#include <fmt/core.h>

#include "config_schema/json_text.h"
#include "config_schema/utf8.h"

namespace cleave {

std::string describe_value(const JsonValue& v) {
  switch (v.kind) {
    case JsonValue::Kind::null:
      return "null";
    case JsonValue::Kind::boolean:
      return v.boolean ? "true (a boolean)" : "false (a boolean)";
    case JsonValue::Kind::number:
      return v.text.size() > 40 ? v.text.substr(0, 40) + "..." : v.text;
    case JsonValue::Kind::text:
      return quote(v.text) + " (a text)";
    case JsonValue::Kind::list:
      return fmt::format("a list of {}", v.items.size());
    case JsonValue::Kind::object:
      return fmt::format("an object with {} keys", v.members.size());
  }
  return {};
}

std::string quote(std::string_view text) {
  constexpr size_t kLongest = 60;
  std::string out = "\"";
  size_t i = 0;
  while (i < text.size() && out.size() < kLongest) {
    const size_t length = utf8_length(text.substr(i));
    const uint8_t c = uint8_t(text[i]);
    if (length == 0 || c < 0x20 || c == 0x7F) {
      out += fmt::format("\\x{:02x}", c);
      ++i;
    } else {
      out += text.substr(i, length);
      i += length;
    }
  }
  return out + (i < text.size() ? "...\"" : "\"");
}

}  // namespace cleave
