#include "data/text/word_count.h"

#include "core/utf8.h"

namespace cleave::text {

void WordCount::add(std::string_view bytes) {
  bytes_ += int64_t(bytes.size());
  held_ += bytes;
  const size_t whole = whole_characters(held_);
  take(std::string_view(held_).substr(0, whole));
  held_.erase(0, whole);
}

void WordCount::end_text() {
  take(held_);
  held_.clear(), in_word_ = false;
}

void WordCount::take(std::string_view text) {
  while (!text.empty()) {
    const Character c = first_character(text);
    text.remove_prefix(size_t(c.bytes));
    const bool space = is_white_space(c.code);
    words_ += !space && !in_word_;
    in_word_ = !space;
  }
}

}  // namespace cleave::text
