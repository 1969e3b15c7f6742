// JSON with positions: every key and value has its line and column for messages. Accepts comments
// (//, /* */ and #), trailing commas, a byte-order mark and Python's Infinity. A duplicate key is
// an error, because one of its values would be lost. Text that is not JSON is read as Hjson
// (hjson_text.h), as in DeepSpeed, and the document has the first position that is not JSON.
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
  std::optional<int64_t> integer;  // of a whole number in range: 5e8 is an integer
  std::string text;                // of a string, decoded; of a number, as written
  std::vector<JsonValue> items;
  std::vector<JsonMember> members;
};

struct JsonMember {
  std::string key;
  TextPosition where;
  JsonValue value;
};

// Returns the member of an object with this key, or nullptr.
const JsonMember* member_of(const JsonValue& object, std::string_view key);

struct JsonError {
  TextPosition where;
  std::string message;
};

struct JsonDocument {
  JsonValue root;
  std::vector<JsonError> errors;      // duplicate keys, and the syntax error that stopped reading
  bool complete = false;              // no syntax error: root is the whole file
  std::optional<JsonError> not_json;  // complete, but Hjson: first position that is not JSON, and the reason
};

// Texts above 1 MiB and nesting above 64 levels are errors.
JsonDocument read_json_text(std::string_view text);

// Returns true if the text is a number, true, false or null, and sets the value; its position
// stays.
bool read_literal(std::string_view text, JsonValue& value);

// Returns strict JSON; a non-finite number becomes null.
std::string to_json(const JsonValue& value);

// Returns the text as a JSON string.
std::string json_string(std::string_view text);

// Returns the value for a message: "\"8\" (text)", "5.5", "a list of 3".
std::string describe_value(const JsonValue& value);

// Returns the text in quotes, with control characters escaped and long text shortened: safe to
// print.
std::string quote(std::string_view text);

}  // namespace cleave::config
