// A value from a file against the key it is for: does it fit, where does it go, does it ask for anything.
#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "config_schema/json_text.h"
#include "config_schema/keys.h"

namespace cleave::config {

// "an integer from 0 to 3", "one of \"none\", \"cpu\", \"nvme\"".
std::string wanted_by(const Key& key);

// What stands in its place: describe_value(), and of two numbers that are not all in range which one is not.
std::string got(const Key& key, const JsonValue& value);

// Whether the value has the key's type and range; then it is stored in the key's target, if there is one.
bool store_value(const Key& key, const JsonValue& value);

// Sections whose values DeepSpeed's reader coerces and where it takes the default for "auto".
bool in_strict_section(std::string_view path);

// What DeepSpeed's reader makes of a value of another type than its key in such a section: "500" and true are
// integers, "1e-3" is a number, 1, "on" and "true" are booleans. Nothing where it refuses the value, too.
std::optional<JsonValue> coerced(const Key& key, const JsonValue& value);

// Whether the value is that of the JSON text; numbers are compared as numbers, an object equal in all
// members.
bool same_value(const JsonValue& value, const std::string& json);

// Whether the value of a warned or refused key asks for nothing: the default, null, or one of key.off, where
// the word `disabled` stands for an object with "enabled": false.
bool is_off(const Key& key, const JsonValue& value);

// The value as JSON on one line, shortened when long.
std::string compact(const JsonValue& value);

// With small letters for those of ASCII.
std::string lower(std::string text);

}  // namespace cleave::config
