// What a text, a value or a section that does not fit probably was, for messages that end a mistake in one
// step.
#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "config_schema/json_text.h"
#include "config_schema/reading.h"

namespace cleave::config {

// What the text is where it is neither JSON nor Hjson that was meant so: YAML, Python, typographic quotes,
// placeholders of a template.
std::optional<JsonError> foreign_text(std::string_view text);

// "${NAME}", "{{ name }}" or "$NAME" of the value, which some other program would fill in; empty: none.
std::string placeholder_in(std::string_view value);

// `; write "bf16": {"enabled": true}` for a section that stands as a plain value; empty where none is usual.
std::string section_form(const Reading& reading, const std::string& section, const JsonValue& value);

}  // namespace cleave::config
