// Reading position in a text, with line and column for messages.
#pragma once
#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "config_schema/json_text.h"
#include "core/utf8.h"

namespace cleave::config {

// Syntax error that stops reading.
struct SyntaxError {
  TextPosition where;
  std::string message;
};

class TextCursor {
 public:
  explicit TextCursor(std::string_view text) : text_(text) {}

  // Returns the byte at this distance; 0 past the end.
  char peek(size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0'; }
  bool at_end() const { return at_ >= text_.size(); }
  bool at(std::string_view word) const { return text_.substr(at_).starts_with(word); }
  size_t offset() const { return at_; }
  TextPosition where() const { return where_; }
  std::string_view since(size_t begin) const { return text_.substr(begin, at_ - begin); }

  void step() {
    const char c = text_[at_++];
    if (c == '\n') {
      ++where_.line, where_.column = 1;
    } else if ((uint8_t(c) & 0xC0) != 0x80) {
      ++where_.column;
    }
  }
  void step(size_t times) {
    while (times-- > 0) step();
  }
  void skip_byte_order_mark() {
    if (at("\xEF\xBB\xBF")) at_ += 3;
  }

  [[noreturn]] void stop(std::string message) const { throw SyntaxError{where_, std::move(message)}; }

  // Returns the next character in quotes.
  std::string here() const {
    if (at_end()) return "end of file";
    return quote(text_.substr(at_, std::max<size_t>(1, utf8_length(text_.substr(at_)))));
  }

  // Skips blanks and comments.
  void skip_blanks() {
    while (!at_end()) {
      const char c = peek();
      if (c == ' ' || c == '\t' || c == '\n' || c == '\r') {
        step();
      } else if (c == '#' || at("//")) {
        while (!at_end() && peek() != '\n') step();
      } else if (at("/*")) {
        skip_block_comment();
      } else {
        return;
      }
    }
  }

 private:
  void skip_block_comment() {
    const TextPosition begin = where_;
    for (step(2); !at("*/"); step())
      if (at_end()) throw SyntaxError{begin, "the comment that begins here has no */"};
    step(2);
  }

  std::string_view text_;
  size_t at_ = 0;
  TextPosition where_;
};

}  // namespace cleave::config
