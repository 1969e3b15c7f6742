// Bytes that nobody vouches for, such as those of a damaged file, in a form that is safe to print.
#pragma once
#include <string>
#include <string_view>

namespace cleave {

// In single quotes, at most `most` bytes of it and then "...". Control characters, quotes, backslashes and
// what is not UTF-8 stand as \xNN.
std::string in_quotes(std::string_view bytes, size_t most = 60);
std::string in_line(std::string_view bytes, size_t most = 60);  // of words that are not quoted

// The same without quotes or a limit, and line ends and tabs stay: for a message as a whole.
std::string printable(std::string_view text);

}  // namespace cleave
