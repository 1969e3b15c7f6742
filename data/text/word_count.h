#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace cleave::text {

// Counts bytes and words of a text that arrives in parts. A word is a maximal run of characters other than
// Unicode white space.
class WordCount {
 public:
  void add(std::string_view bytes);
  // Ends the text: the next character starts another word.
  void end_text();

  int64_t bytes() const { return bytes_; }
  int64_t words() const { return words_; }

 private:
  void take(std::string_view text);

  std::string held_;  // incomplete character
  int64_t bytes_ = 0, words_ = 0;
  bool in_word_ = false;
};

}  // namespace cleave::text
