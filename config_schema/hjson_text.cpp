#include "config_schema/hjson_text.h"

#include <fmt/core.h>

#include "config_schema/text_cursor.h"

namespace cleave::config {
namespace {

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }

bool is_punctuation(char c) {
  return c != '\0' && std::string_view("{}[],:").find(c) != std::string_view::npos;
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
  return text;
}

}  // namespace

std::string hjson_key(TextCursor& at) {
  const size_t begin = at.offset();
  while (uint8_t(at.peek()) > ' ' && !is_punctuation(at.peek())) at.step();
  if (at.offset() == begin) at.stop(fmt::format("expected a key, got {}", at.here()));
  return std::string(at.since(begin));
}

void hjson_word(TextCursor& at, JsonValue& v) {
  if (is_punctuation(at.peek()) || at.at_end()) at.stop(fmt::format("expected a value, got {}", at.here()));
  for (const size_t begin = at.offset();; at.step()) {
    const char c = at.peek();
    const bool line_ends = at.at_end() || c == '\n';
    if (line_ends || c == ',' || c == '}' || c == ']' || c == '#' || at.at("//") || at.at("/*")) {
      const std::string_view text = trimmed(at.since(begin));
      if (read_literal(text, v)) return;
      if (!line_ends) continue;
      v.kind = JsonValue::Kind::text, v.text = text;
      return;
    }
    if (uint8_t(c) < 0x20 && !is_blank(c)) at.stop("control character in a string");
  }
}

std::string hjson_lines(TextCursor& at) {
  const TextPosition begin = at.where();
  std::string out;
  at.step(3);
  while (is_blank(at.peek())) at.step();
  const auto indent = [&] {
    for (int i = 1; i < begin.column && (at.peek() == ' ' || at.peek() == '\t'); ++i) at.step();
  };
  if (at.peek() == '\n') at.step(), indent();
  while (!at.at("'''")) {
    if (at.at_end()) throw SyntaxError{begin, "the string that starts here has no closing '''"};
    const char c = at.peek();
    if (c != '\r') out += c;
    at.step();
    if (c == '\n') indent();
  }
  at.step(3);
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

}  // namespace cleave::config
