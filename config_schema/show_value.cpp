// JSON values for messages.
#include <fmt/core.h>

#include <cmath>

#include "config_schema/json_text.h"
#include "core/utf8.h"

namespace cleave::config {
std::string json_string(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (uint8_t(c) < 0x20)
      out += fmt::format("\\u{:04x}", uint8_t(c));
    else
      out += c;
  }
  return out + '"';
}

std::string to_json(const JsonValue& v) {
  std::string out, separator;
  switch (v.kind) {
    case JsonValue::Kind::null:
      return "null";
    case JsonValue::Kind::boolean:
      return v.boolean ? "true" : "false";
    case JsonValue::Kind::number:
      return std::isfinite(v.number) ? v.text : "null";
    case JsonValue::Kind::text:
      return json_string(v.text);
    case JsonValue::Kind::list:
      for (const JsonValue& item : v.items) out += separator + to_json(item), separator = ", ";
      return "[" + out + "]";
    case JsonValue::Kind::object:
      for (const JsonMember& m : v.members)
        out += separator + json_string(m.key) + ": " + to_json(m.value), separator = ", ";
      return "{" + out + "}";
  }
  return out;
}

std::string describe_value(const JsonValue& v) {
  switch (v.kind) {
    case JsonValue::Kind::null:
      return "null";
    case JsonValue::Kind::boolean:
      return v.boolean ? "true (a boolean)" : "false (a boolean)";
    case JsonValue::Kind::number:
      return v.text.size() > 40 ? v.text.substr(0, 40) + "..." : v.text;
    case JsonValue::Kind::text:
      return quote(v.text) + " (a string)";
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
    // C1 controls (two bytes in UTF-8) also move a terminal's cursor; their second byte does not
    // start a character.
    const bool control = c < 0x20 || c == 0x7F || (c == 0xC2 && length == 2 && uint8_t(text[i + 1]) < 0xA0);
    if (length == 0 || control) {
      out += fmt::format("\\x{:02x}", c);
      ++i;
    } else {
      out += text.substr(i, length);
      i += length;
    }
  }
  return out + (i < text.size() ? "...\"" : "\"");
}

}  // namespace cleave::config
