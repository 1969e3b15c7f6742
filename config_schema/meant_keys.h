// Common wrong names of keys.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "config_schema/json_text.h"

namespace cleave::config {

// A wrong name in a section. `key` is the intended key; without one, `says` is the complete advice.
struct Meant {
  std::string_view section, name, key, says = {};
  enum class When : uint8_t {
    always,     // an error
    warning,    // never an error
    asking,     // an error unless the value disables the feature
    above_one,  // as asking, for a number of ranks; 1 also disables
  } when = When::always;
};

// Returns the row of a name, with any dashes and capitals, or nullptr.
const Meant* meant_by(std::string_view section, std::string_view name);

// Returns the row at an edit distance of one from a name of at least eight characters, or nullptr.
const Meant* nearly_meant_by(std::string_view section, std::string_view name);

// Returns true if the value of an unknown key disables a feature.
bool asks_for_nothing(const JsonValue& value);

// Returns true if the value disables the feature of the row; for a type, fp32.
bool asks_for_nothing(const Meant& row, const JsonValue& value);

}  // namespace cleave::config
