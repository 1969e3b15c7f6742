// Paths in JSON. A path is bytes, and a string in JSON is UTF-8. So a byte that is not part of UTF-8 is
// written as \xNN with two lower-case hexadecimal digits, and a backslash before an x as \x5c; everything
// else stands as it is. Reading turns every \xNN into its byte, which gives the path back.
#pragma once
#include <string>
#include <string_view>

namespace cleave {

std::string path_in_json(std::string_view path);
std::string path_from_json(std::string_view text);

}  // namespace cleave
