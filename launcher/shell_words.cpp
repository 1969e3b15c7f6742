#include "launcher/shell_words.h"

#include <algorithm>
#include <cctype>
#include <cstdint>

#include "core/error.h"

namespace cleave::launcher {

std::string shell_quoted(std::string_view word) {
  constexpr std::string_view kPlain = "@%+=:,./-_";
  const bool plain = !word.empty() && std::all_of(word.begin(), word.end(), [&](char c) {
    return (uint8_t(c) < 0x80 && std::isalnum(uint8_t(c))) || kPlain.find(c) != kPlain.npos;
  });
  if (plain) return std::string(word);
  std::string out = "'";
  for (const char c : word)
    if (c == '\'')
      out += "'\\''";
    else
      out += c;
  return out + "'";
}

std::string shell_quoted(const std::vector<std::string>& words) {
  std::string out;
  for (const std::string& word : words) out += (out.empty() ? "" : " ") + shell_quoted(word);
  return out;
}

std::vector<std::string> shell_words(std::string_view text, std::string_view what) {
  std::vector<std::string> words;
  char quote = 0;
  bool open = false;  // inside a word
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (!quote && std::isspace(uint8_t(c))) {
      open = false;
      continue;
    }
    if (!open) words.emplace_back();
    open = true;
    const bool escapes = c == '\\' && i + 1 < text.size() &&
                         (!quote || (quote == '"' && (text[i + 1] == '"' || text[i + 1] == '\\')));
    if (escapes)
      words.back() += text[++i];
    else if (c == quote)
      quote = 0;
    else if (!quote && (c == '\'' || c == '"'))
      quote = c;
    else
      words.back() += c;
  }
  require(!quote, Exit::usage, "{}: unclosed quote: {}", what, text);
  return words;
}

}  // namespace cleave::launcher
