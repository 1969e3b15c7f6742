// Words as a POSIX shell reads and writes them.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace cleave::launcher {

// So that a shell reads back the same word, whatever it holds.
std::string shell_quoted(std::string_view word);
std::string shell_quoted(const std::vector<std::string>& words);  // with blanks between

// Cut at blanks outside of quotes; nothing is expanded. Error(usage), with `what` it is, for an open quote.
std::vector<std::string> shell_words(std::string_view text, std::string_view what);

}  // namespace cleave::launcher
