#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace cleave::text {

// Bytes and words of a text that comes in parts. A word is a longest run of characters that are no white
// space of Unicode.
class WordCount {
 public:
  void add(std::string_view bytes);
  // The text ends here: what comes next is another word.
  void end_text();

  int64_t bytes() const { return bytes_; }
  int64_t words() const { return words_; }

 private:
  void take(std::string_view text);

  std::string held_;  // a character that is not complete
  int64_t bytes_ = 0, words_ = 0;
  bool in_word_ = false;
};

}  // namespace cleave::text
