#include "config_schema/json_text.h"

#include <fmt/core.h>

#include <charconv>
#include <cmath>
#include <set>

#include "config_schema/utf8.h"

namespace cleave {
namespace {

constexpr size_t kMaxBytes = size_t{1} << 20;
constexpr int kMaxDepth = 64;

struct Syntax {
  TextPosition where;
  std::string message;
};

class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  void read(JsonDocument& document) {
    check_utf8();
    if (text_.starts_with("\xEF\xBB\xBF")) at_ = 3;
    skip_blanks();
    if (at_ == text_.size()) stop("the file is empty; a configuration is a JSON object: { ... }");
    document.root = value(document, 0);
    skip_blanks();
    if (at_ < text_.size()) stop(fmt::format("unexpected {} after the end of the object", here()));
  }

 private:
  [[noreturn]] void stop(std::string message) const { throw Syntax{where_, std::move(message)}; }

  void check_utf8() {
    for (size_t i = 0; i < text_.size();) {
      const size_t length = utf8_length(text_.substr(i));
      if (length == 0)
        stop(fmt::format("byte 0x{:02x} is not UTF-8; save the file as UTF-8", uint8_t(text_[i])));
      while (at_ < i + length) step();
      i += length;
    }
    at_ = 0, where_ = {};
  }

  char peek(size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0'; }

  void step() {
    const char c = text_[at_++];
    if (c == '\n') {
      ++where_.line, where_.column = 1;
    } else if ((uint8_t(c) & 0xC0) != 0x80) {
      ++where_.column;
    }
  }

  std::string here() const {
    if (at_ >= text_.size()) return "end of file";
    const size_t length = std::max<size_t>(1, utf8_length(text_.substr(at_)));
    return quote(text_.substr(at_, length));
  }

  void skip_blanks() {
    while (at_ < text_.size()) {
      const char c = peek();
      if (c == ' ' || c == '\t' || c == '\n' || c == '\r') {
        step();
      } else if (c == '#' || (c == '/' && peek(1) == '/')) {
        while (at_ < text_.size() && peek() != '\n') step();
      } else if (c == '/' && peek(1) == '*') {
        skip_block_comment();
      } else {
        return;
      }
    }
  }

  void skip_block_comment() {
    const TextPosition begin = where_;
    step(), step();
    while (!(peek() == '*' && peek(1) == '/')) {
      if (at_ >= text_.size()) throw Syntax{begin, "the comment that begins here has no */"};
      step();
    }
    step(), step();
  }

  JsonValue value(JsonDocument& document, int depth) {
    if (depth > kMaxDepth) stop(fmt::format("nested deeper than {} levels", kMaxDepth));
    JsonValue v;
    v.where = where_;
    const char c = peek();
    if (c == '{') {
      v.kind = JsonValue::Kind::object;
      members(document, v, depth);
    } else if (c == '[') {
      v.kind = JsonValue::Kind::list;
      items(document, v, depth);
    } else if (c == '"') {
      v.kind = JsonValue::Kind::text;
      v.text = string();
    } else {
      word(v);
    }
    return v;
  }

  void members(JsonDocument& document, JsonValue& object, int depth) {
    const TextPosition begin = where_;
    std::set<std::string, std::less<>> seen;
    step();
    for (skip_blanks(); peek() != '}'; skip_blanks()) {
      need_more(begin, "object");
      JsonMember member;
      member.where = where_;
      if (peek() != '"') stop(fmt::format("expected a key in double quotes, got {}", here()));
      member.key = string();
      if (!seen.insert(member.key).second)
        document.errors.push_back({member.where, fmt::format("key {} is given twice in the same object; "
                                                             "remove one of them",
                                                             quote(member.key))});
      skip_blanks();
      if (peek() != ':') stop(fmt::format("expected ':' after key {}, got {}", quote(member.key), here()));
      step();
      skip_blanks();
      member.value = value(document, depth + 1);
      object.members.push_back(std::move(member));
      separator('}', begin, "object");
    }
    step();
  }

  void items(JsonDocument& document, JsonValue& list, int depth) {
    const TextPosition begin = where_;
    step();
    for (skip_blanks(); peek() != ']'; skip_blanks()) {
      need_more(begin, "list");
      list.items.push_back(value(document, depth + 1));
      separator(']', begin, "list");
    }
    step();
  }

  void need_more(TextPosition begin, const char* what) const {
    if (at_ >= text_.size()) throw Syntax{begin, fmt::format("the {} that begins here is not closed", what)};
  }

  void separator(char close, TextPosition begin, const char* what) {
    skip_blanks();
    need_more(begin, what);
    if (peek() == ',') return step();
    if (peek() != close) stop(fmt::format("expected ',' or '{}' in the {}, got {}", close, what, here()));
  }

  std::string string() {
    const TextPosition begin = where_;
    std::string out;
    for (step(); peek() != '"';) {
      if (at_ >= text_.size() || peek() == '\n')
        throw Syntax{begin, "the text that begins here has no closing quote"};
      if (uint8_t(peek()) < 0x20) stop("a control character inside a text; write it as \\t, \\n or \\u00XX");
      if (peek() == '\\') {
        escape(out);
      } else {
        out += peek();
        step();
      }
    }
    step();
    return out;
  }

  void escape(std::string& out) {
    step();
    const std::string_view from = "\"\\/bfnrt", to = "\"\\/\b\f\n\r\t";
    if (const size_t i = peek() ? from.find(peek()) : std::string_view::npos; i != std::string_view::npos) {
      out += to[i];
      step();
    } else if (peek() == 'u') {
      uint32_t code = hex4();
      if (code >= 0xD800 && code < 0xDC00 && peek() == '\\' && peek(1) == 'u') {
        step();
        const uint32_t low = hex4();
        if (low < 0xDC00 || low > 0xDFFF) stop("\\u surrogates must come in pairs");
        code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
      }
      if (code >= 0xD800 && code < 0xE000) stop("\\u surrogates must come in pairs");
      append_utf8(out, code);
    } else {
      stop(fmt::format("\\{} is not a JSON escape",
                       at_ < text_.size() ? std::string(1, peek()) : "end of file"));
    }
  }

  uint32_t hex4() {
    step();
    uint32_t code = 0;
    for (int i = 0; i < 4; ++i) {
      uint32_t digit = 0;
      const char* p = at_ < text_.size() ? text_.data() + at_ : nullptr;
      if (!p || std::from_chars(p, p + 1, digit, 16).ptr == p) stop("\\u needs four hexadecimal digits");
      code = code * 16 + digit;
      step();
    }
    return code;
  }

  void word(JsonValue& v) {
    const size_t begin = at_;
    const auto part_of_word = [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '+' ||
             c == '-' || c == '.';
    };
    if (!part_of_word(peek())) stop(fmt::format("expected a value, got {}", here()));
    while (part_of_word(peek())) step();
    v.text = std::string(text_.substr(begin, at_ - begin));
    if (v.text == "null") return;
    if (v.text == "true" || v.text == "false") {
      v.kind = JsonValue::Kind::boolean, v.boolean = v.text == "true";
    } else if (!number(v)) {
      throw Syntax{v.where,
                   fmt::format("{} is not a JSON value; texts need double quotes, and words are true, "
                               "false and null",
                               quote(v.text))};
    }
  }

  static bool number(JsonValue& v) {
    v.kind = JsonValue::Kind::number;
    const char *begin = v.text.data(), *end = begin + v.text.size();
    const std::string_view digits = std::string_view(v.text).substr(v.text[0] == '-' ? 1 : 0);
    if (digits.size() > 1 && digits[0] == '0' && digits[1] >= '0' && digits[1] <= '9') return false;
    int64_t whole = 0;
    if (const auto r = std::from_chars(begin, end, whole); r.ec == std::errc{} && r.ptr == end) {
      v.number = double(whole), v.integer = whole;
      return true;
    }
    if (v.text == "Infinity" || v.text == "-Infinity" || v.text == "NaN") {
      v.number = v.text == "NaN" ? NAN : v.text[0] == '-' ? -INFINITY : INFINITY;
      return true;
    }
    if (digits.empty() || digits[0] < '0' || digits[0] > '9') return false;
    const auto r = std::from_chars(begin, end, v.number);
    if (r.ptr != end) return false;
    if (r.ec == std::errc::result_out_of_range) {
      const bool tiny = v.text.find("e-") != std::string::npos || v.text.find("E-") != std::string::npos;
      v.number = tiny ? 0.0 : v.text[0] == '-' ? -INFINITY : INFINITY;
      return true;
    }
    if (std::floor(v.number) == v.number && std::fabs(v.number) < 0x1p63) v.integer = int64_t(v.number);
    return true;
  }

  std::string_view text_;
  size_t at_ = 0;
  TextPosition where_;
};

}  // namespace

JsonDocument read_json_text(std::string_view text) {
  JsonDocument document;
  if (text.size() > kMaxBytes) {
    document.errors.push_back(
        {{}, fmt::format("the text has {} bytes; a configuration has at most {}", text.size(), kMaxBytes)});
    return document;
  }
  try {
    Reader(text).read(document);
    document.complete = true;
  } catch (const Syntax& s) {
    document.errors.push_back({s.where, s.message});
  }
  return document;
}

}  // namespace cleave
