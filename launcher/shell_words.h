// Reads and writes words in the syntax of a POSIX shell.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace cleave::launcher {

// Quotes a word so that a shell reads it back unchanged.
std::string shell_quoted(std::string_view word);
std::string shell_quoted(const std::vector<std::string>& words);  // joined by blanks

// Splits at blanks outside of quotes without expansion. Throws Error(usage), which names `what`, for an open
// quote.
std::vector<std::string> shell_words(std::string_view text, std::string_view what);

}  // namespace cleave::launcher
