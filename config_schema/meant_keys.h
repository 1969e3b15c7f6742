// Names that are no keys and that people write for one.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "config_schema/json_text.h"

namespace cleave::config {

// A name by the section it stands in. `key` is the one that is meant; without one, `says` is all there is to
// say.
struct Meant {
  std::string_view section, name, key, says = {};
  enum class When : uint8_t {
    always,     // an error
    warning,    // never an error
    asking,     // an error unless the value asks for nothing
    above_one,  // the same of a number of ranks, of which 1 asks for nothing, too
  } when = When::always;
};

// The row of a name, which may be written with dashes and capitals; nullptr: none.
const Meant* meant_by(std::string_view section, std::string_view name);

// The row whose name is one edit away from a name of eight characters or more; nullptr: none.
const Meant* nearly_meant_by(std::string_view section, std::string_view name);

// Whether a value of an unknown key asks for nothing.
bool asks_for_nothing(const JsonValue& value);

// Whether the row takes the value for nothing asked; for a type that is fp32.
bool asks_for_nothing(const Meant& row, const JsonValue& value);

}  // namespace cleave::config
