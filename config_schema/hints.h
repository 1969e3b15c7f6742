// Hints for messages: the probable intention of a text, value or section that is invalid.
#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "config_schema/json_text.h"
#include "config_schema/reading.h"

namespace cleave::config {

// Identifies a text that is neither JSON nor Hjson: YAML, Python, typographic quotes, template
// placeholders.
std::optional<JsonError> foreign_text(std::string_view text);

// Returns a placeholder in the value, such as "${NAME}", "{{ name }}" or "$NAME", that another
// program should have replaced; empty if none.
std::string placeholder_in(std::string_view value);

// Returns `; write "bf16": {"enabled": true}` for a section that is written as a plain value; empty
// if the section has no usual form.
std::string section_form(const Reading& reading, const std::string& section, const JsonValue& value);

}  // namespace cleave::config
