// File paths in JSON. A path is bytes; a JSON string is UTF-8. A byte outside UTF-8 is written as \xNN with
// two lower-case hexadecimal digits, and a backslash before an x as \x5c; everything else is unchanged.
// Reading replaces every \xNN by its byte, so a round trip returns the same path.
#pragma once
#include <string>
#include <string_view>

namespace cleave {

std::string path_in_json(std::string_view path);
std::string path_from_json(std::string_view text);

}  // namespace cleave
