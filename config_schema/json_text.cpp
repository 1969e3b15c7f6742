#include "config_schema/json_text.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>

#include "config_schema/hjson_text.h"
#include "config_schema/text_cursor.h"

namespace cleave::config {
namespace {

constexpr size_t kMaxBytes = size_t{1} << 20;
constexpr int kMaxDepth = 64;

void check_utf8(std::string_view text) {
  TextCursor at(text);
  for (size_t i = 0; i < text.size();) {
    const size_t length = utf8_length(text.substr(i));
    if (length == 0)
      at.stop(fmt::format("byte 0x{:02x} is not UTF-8; save the file as UTF-8", uint8_t(text[i])));
    at.step(length);
    i += length;
  }
}

bool read_number(JsonValue& v) {
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

class Reader {
 public:
  Reader(std::string_view text, bool hjson) : at_(text), hjson_(hjson) {}

  void read(JsonDocument& document) {
    at_.skip_byte_order_mark();
    at_.skip_blanks();
    if (at_.at_end()) at_.stop("the file is empty; expected a JSON object: { ... }");
    document.root = value(document, 0);
    at_.skip_blanks();
    if (!at_.at_end()) at_.stop(fmt::format("unexpected {} after the end of the object", at_.here()));
  }

 private:
  JsonValue value(JsonDocument& document, int depth) {
    if (depth > kMaxDepth) at_.stop(fmt::format("nested deeper than {} levels", kMaxDepth));
    JsonValue v;
    v.where = at_.where();
    const char c = at_.peek();
    if (c == '{') {
      v.kind = JsonValue::Kind::object;
      members(document, v, depth);
    } else if (c == '[') {
      v.kind = JsonValue::Kind::list;
      items(document, v, depth);
    } else if (hjson_ && at_.at("'''")) {
      v.kind = JsonValue::Kind::text, v.text = hjson_lines(at_);
    } else if (c == '"' || (hjson_ && c == '\'')) {
      v.kind = JsonValue::Kind::text, v.text = string();
    } else if (hjson_) {
      hjson_word(at_, v);
    } else {
      word(v);
    }
    return v;
  }

  void members(JsonDocument& document, JsonValue& object, int depth) {
    const TextPosition begin = at_.where();
    std::set<std::string, std::less<>> seen;
    at_.step();
    for (at_.skip_blanks(); at_.peek() != '}'; at_.skip_blanks()) {
      need_more(begin, "object");
      JsonMember member;
      member.where = at_.where();
      member.key = key();
      if (!seen.insert(member.key).second)
        document.errors.push_back(
            {member.where, fmt::format("duplicate key {} in one object; remove one", quote(member.key))});
      at_.skip_blanks();
      if (at_.peek() != ':')
        at_.stop(fmt::format("expected ':' after key {}, got {}", quote(member.key), at_.here()));
      at_.step();
      at_.skip_blanks();
      member.value = value(document, depth + 1);
      object.members.push_back(std::move(member));
      separator('}', begin, "object");
    }
    at_.step();
  }

  std::string key() {
    if (at_.peek() == '"' || (hjson_ && at_.peek() == '\'')) return string();
    if (!hjson_) at_.stop(fmt::format("expected a key in double quotes, got {}", at_.here()));
    return hjson_key(at_);
  }

  void items(JsonDocument& document, JsonValue& list, int depth) {
    const TextPosition begin = at_.where();
    at_.step();
    for (at_.skip_blanks(); at_.peek() != ']'; at_.skip_blanks()) {
      need_more(begin, "list");
      list.items.push_back(value(document, depth + 1));
      separator(']', begin, "list");
    }
    at_.step();
  }

  void need_more(TextPosition begin, const char* what) const {
    if (at_.at_end()) throw SyntaxError{begin, fmt::format("the {} that starts here is not closed", what)};
  }

  void separator(char close, TextPosition begin, const char* what) {
    at_.skip_blanks();
    need_more(begin, what);
    if (at_.peek() == ',') return at_.step();
    const bool begins_value =
        std::string_view("\"{[-0123456789tfn").find(at_.peek()) != std::string_view::npos;
    if (!hjson_ && (close == '}' ? at_.peek() == '"' : begins_value))
      at_.stop(fmt::format("missing comma before this {}", close == '}' ? "key" : "value"));
    if (at_.peek() != close && !hjson_)
      at_.stop(fmt::format("expected ',' or '{}' in the {}, got {}", close, what, at_.here()));
  }

  std::string string() {
    const TextPosition begin = at_.where();
    const char end = at_.peek();
    std::string out;
    for (at_.step(); at_.peek() != end;) {
      if (at_.at_end() || at_.peek() == '\n')
        throw SyntaxError{begin, "the string that starts here has no closing quote"};
      if (uint8_t(at_.peek()) < 0x20)
        at_.stop("control character in a string; write it as \\t, \\n or \\u00XX");
      if (at_.peek() == '\\') {
        escape(out);
      } else {
        out += at_.peek();
        at_.step();
      }
    }
    at_.step();
    return out;
  }

  void escape(std::string& out) {
    at_.step();
    const std::string_view from = hjson_ ? "\"\\/bfnrt'" : "\"\\/bfnrt", to = "\"\\/\b\f\n\r\t'";
    const size_t i = at_.peek() ? from.find(at_.peek()) : std::string_view::npos;
    if (i != std::string_view::npos) {
      out += to[i];
      at_.step();
    } else if (at_.peek() == 'u') {
      uint32_t code = hex4();
      if (code >= 0xD800 && code < 0xDC00 && at_.at("\\u")) {
        at_.step();
        const uint32_t low = hex4();
        if (low < 0xDC00 || low > 0xDFFF) at_.stop("\\u surrogates must come in pairs");
        code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
      }
      if (code >= 0xD800 && code < 0xE000) at_.stop("\\u surrogates must come in pairs");
      append_utf8(out, code);
    } else {
      at_.stop(fmt::format("\\{} is not a JSON escape",
                           at_.at_end() ? "end of file" : std::string(1, at_.peek())));
    }
  }

  uint32_t hex4() {
    at_.step();
    uint32_t code = 0;
    for (int i = 0; i < 4; ++i) {
      uint32_t digit = 0;
      const char c = at_.peek();
      if (std::from_chars(&c, &c + 1, digit, 16).ptr == &c) at_.stop("\\u needs four hexadecimal digits");
      code = code * 16 + digit;
      at_.step();
    }
    return code;
  }

  void word(JsonValue& v) {
    const size_t begin = at_.offset();
    const auto part_of_word = [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '+' ||
             c == '-' || c == '.';
    };
    if (!part_of_word(at_.peek())) at_.stop(fmt::format("expected a value, got {}", at_.here()));
    while (part_of_word(at_.peek())) at_.step();
    if (const std::string_view text = at_.since(begin); !read_literal(text, v))
      throw SyntaxError{
          v.where,
          fmt::format(
              "{} is not a JSON value; strings need double quotes, and words are true, false and null",
              quote(text))};
  }

  TextCursor at_;
  bool hjson_;
};

JsonDocument read_as(std::string_view text, bool hjson) {
  JsonDocument document;
  try {
    Reader(text, hjson).read(document);
    document.complete = true;
  } catch (const SyntaxError& s) {
    document.errors.push_back({s.where, s.message});
  }
  return document;
}

}  // namespace

bool read_literal(std::string_view text, JsonValue& v) {
  JsonValue read;
  read.where = v.where, read.text = text;
  if (text == "true" || text == "false") {
    read.kind = JsonValue::Kind::boolean, read.boolean = text == "true";
  } else if (text != "null" && (text.empty() || !read_number(read))) {
    return false;
  }
  v = std::move(read);
  return true;
}

const JsonMember* member_of(const JsonValue& object, std::string_view key) {
  const auto found = std::find_if(object.members.begin(), object.members.end(),
                                  [&](const JsonMember& m) { return m.key == key; });
  return found == object.members.end() ? nullptr : &*found;
}

JsonDocument read_json_text(std::string_view text) {
  JsonDocument document;
  if (text.size() > kMaxBytes) {
    document.errors.push_back(
        {{},
         fmt::format("the text is too large (got {} bytes, expected at most {})", text.size(), kMaxBytes)});
    return document;
  }
  try {
    check_utf8(text);
  } catch (const SyntaxError& s) {
    document.errors.push_back({s.where, s.message});
    return document;
  }
  document = read_as(text, false);
  if (document.complete) return document;
  const JsonError why = document.errors.back();
  JsonDocument hjson = read_as(text, true);
  if (hjson.complete) {
    hjson.not_json = why;
    return hjson;
  }
  // Both readings failed: report the second one only if it read further.
  if (const JsonError& later = hjson.errors.back(); why.where < later.where)
    document.errors.push_back({later.where, "read as Hjson, as DeepSpeed does: " + later.message});
  return document;
}

}  // namespace cleave::config
