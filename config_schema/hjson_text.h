// Syntax of Hjson in addition to JSON, as in DeepSpeed's reader: unquoted keys and strings, and
// multi-line strings.
#pragma once
#include <string>

#include "config_schema/json_text.h"

namespace cleave::config {

class TextCursor;

// The cursor is at the first character before these calls, and after the last one when they return.

// Reads an unquoted key, up to a blank or punctuation. SyntaxError if it is empty.
std::string hjson_key(TextCursor& at);

// Reads an unquoted value: a number, true, false or null up to a comma, a bracket, a comment or the
// line end; otherwise a string up to the line end.
void hjson_word(TextCursor& at, JsonValue& value);

// Reads a string between triple single quotes: its lines without the indentation up to the column
// of the opening quotes.
std::string hjson_lines(TextCursor& at);

}  // namespace cleave::config
