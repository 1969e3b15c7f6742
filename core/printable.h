// Makes untrusted bytes, such as those of a damaged file, safe to print.
#pragma once
#include <string>
#include <string_view>

namespace cleave {

// Quotes at most `most` bytes with single quotes, followed by "..." if truncated. Control characters, quotes,
// backslashes and invalid UTF-8 become \xNN.
std::string in_quotes(std::string_view bytes, size_t most = 60);
std::string in_line(std::string_view bytes, size_t most = 60);  // without quotes, quotes unchanged

// Escapes a whole message: no quotes, no limit; line ends and tabs are kept.
std::string printable(std::string_view text);

}  // namespace cleave
