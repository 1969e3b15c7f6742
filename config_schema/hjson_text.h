// What Hjson allows beyond JSON, and DeepSpeed's reader with it: keys and texts without quotes, and texts of
// several lines.
#pragma once
#include <string>

#include "config_schema/json_text.h"

namespace cleave::config {

class TextCursor;

// The cursor stands at the first character, and behind the last when these return.

// A key without quotes: up to a blank or punctuation. SyntaxError when there is none.
std::string hjson_key(TextCursor& at);

// A value without quotes: a number, true, false or null that ends at a comma, a bracket, a comment or its
// line; else a text that goes on to the end of its line, whatever is in it.
void hjson_word(TextCursor& at, JsonValue& value);

// A text between three single quotes each: its lines, without the blanks below the opening quotes' column.
std::string hjson_lines(TextCursor& at);

}  // namespace cleave::config
