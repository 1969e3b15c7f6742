// Values of a file compared with their key: validation, storage, and values that disable a feature.
#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "config_schema/json_text.h"
#include "config_schema/keys.h"

namespace cleave::config {

// Returns, for example, "an integer from 0 to 3", or "one of \"none\", \"cpu\", \"nvme\"".
std::string wanted_by(const Key& key);

// Returns the given value for a message: describe_value(), and for a pair of numbers the one out of
// range.
std::string got(const Key& key, const JsonValue& value);

// Stores the value in the key's target, if it has one. Returns false for a wrong type or range.
bool store_value(const Key& key, const JsonValue& value);

// Returns true for sections with values that DeepSpeed's reader converts, and "auto" as the
// default.
bool in_strict_section(std::string_view path);

// Returns the value as DeepSpeed's reader converts it in such a section: "500" and true become
// integers, "1e-3" a number, 1, "on" and "true" booleans. Empty if DeepSpeed also rejects it.
std::optional<JsonValue> coerced(const Key& key, const JsonValue& value);

// Returns true if the value equals the JSON text. Numbers are compared as numbers, objects by all
// members.
bool same_value(const JsonValue& value, const std::string& json);

// Returns true if the value disables a warned or refused key: the default, null, or one of key.off.
// The word `disabled` in key.off means an object with "enabled": false.
bool is_off(const Key& key, const JsonValue& value);

// Returns the value as JSON in one line; long values are shortened.
std::string compact(const JsonValue& value);

// Converts ASCII letters to lower case.
std::string lower(std::string text);

}  // namespace cleave::config
