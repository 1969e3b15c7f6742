// JSON with positions: a configuration is written by people, so every key and value remembers its line and
// column. Comments (//, /* */ and #), trailing commas, a byte-order mark and Python's Infinity are tolerated;
// a key given twice is an error, because one of the two values would be lost. A text that is not JSON is read
// as Hjson (hjson_text.h), as DeepSpeed reads it, and the document says where it is not JSON.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cleave::config {

struct TextPosition {
  int line = 1, column = 1;  // columns count characters, not bytes
  auto operator<=>(const TextPosition&) const = default;
};

struct JsonMember;

struct JsonValue {
  enum class Kind : uint8_t { null, boolean, number, text, list, object };
  Kind kind = Kind::null;
  TextPosition where;
  bool boolean = false;
  double number = 0;
  std::optional<int64_t> integer;  // of a number that is whole and fits: 5e8 is an integer
  std::string text;                // of a text, decoded; of a number, as written
  std::vector<JsonValue> items;
  std::vector<JsonMember> members;
};

struct JsonMember {
  std::string key;
  TextPosition where;
  JsonValue value;
};

struct JsonError {
  TextPosition where;
  std::string message;
};

struct JsonDocument {
  JsonValue root;
  std::vector<JsonError> errors;  // duplicate keys, and the syntax error at which reading stopped
  bool complete = false;          // no syntax error: root is the whole file
  std::optional<JsonError>
      not_json;  // complete, but only as Hjson: the first position that is not JSON, and why
};

// Texts above 1 MiB and nesting above 64 levels are refused.
JsonDocument read_json_text(std::string_view text);

// Whether the text is a number, true, false or null; then it is the value, whose position stays.
bool read_literal(std::string_view text, JsonValue& value);

// The value as strict JSON. A number that is not finite becomes null.
std::string to_json(const JsonValue& value);

// The text as a JSON string.
std::string json_string(std::string_view text);

// The value for a message: "\"8\" (text)", "5.5", "a list of 3".
std::string describe_value(const JsonValue& value);

// The text in quotes, control characters escaped, shortened when long: safe to print.
std::string quote(std::string_view text);

}  // namespace cleave::config
