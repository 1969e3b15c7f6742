#include "core/json.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "core/printable.h"

namespace cleave {
namespace {

using nlohmann::json;

// Input iterator that records the read position.
class Counted {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  Counted(const char* at, const char** read) : at_(at), read_(read) {}
  reference operator*() const { return *at_; }
  Counted& operator++() { return *read_ = ++at_, *this; }
  Counted operator++(int) {
    const Counted before = *this;
    ++*this;
    return before;
  }
  bool operator==(const Counted& other) const { return at_ == other.at_; }

 private:
  const char* at_;
  const char** read_;
};

// Position of the quote that opens the string closed by text[close].
size_t opening_quote(std::string_view text, size_t close) {
  for (size_t at = close; at-- > 0;) {
    if (text[at] != '"') continue;
    size_t escapes = 0;
    while (escapes < at && text[at - 1 - escapes] == '\\') ++escapes;
    if (escapes % 2 == 0) return at;
  }
  return 0;
}

struct Span {
  size_t begin, end;
};

// The token at text[at]; inside a string, the single character.
Span token_at(std::string_view text, size_t at, bool in_string) {
  const auto in_word = [&](size_t i) {
    const char c = text[i];
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '+' ||
           c == '-' || c == '.';
  };
  if (in_string) return {at, at + 1};
  if (text[at] == '"') return {opening_quote(text, at), at + 1};
  Span word{at, at + 1};
  while (in_word(at) && word.begin > 0 && in_word(word.begin - 1)) --word.begin;
  while (in_word(at) && word.end < text.size() && in_word(word.end)) ++word.end;
  return word;
}

// Checks without building a value; stops at the first fault.
class Judge : public nlohmann::json_sax<json> {
 public:
  explicit Judge(std::string_view text) : text_(text), read_(text.data()) {}

  std::optional<JsonFault> fault() {
    json::sax_parse(Counted(text_.data(), &read_), Counted(text_.data() + text_.size(), &read_), this);
    return std::move(fault_);
  }

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(size_t) override { return open(); }
  bool end_object() override { return close(); }
  bool start_array(size_t) override { return open(); }
  bool end_array() override { return close(); }
  bool key(string_t& name) override {
    if (keys_.back().insert(name).second) return true;
    return stop(opening_quote(text_, read() - 1),
                fmt::format("duplicate key {} in one object", in_quotes(name)));
  }
  bool parse_error(size_t position, const std::string&, const json::exception& e) override {
    if (text_.find_first_not_of(" \t\r\n") == std::string_view::npos) return stop(0, "it is empty");
    std::string why = without_number(e.what());
    if (const size_t dash = why.find(" - "); dash != std::string::npos) why.erase(0, dash + 3);
    const size_t last = why.find("; last read: ");
    if (last != std::string::npos) why.erase(last);
    const bool in_string = why.starts_with("invalid string");
    const Span token =
        position > text_.size() ? Span{text_.size(), text_.size()} : token_at(text_, position - 1, in_string);
    const std::string_view word = text_.substr(token.begin, token.end - token.begin);
    const bool shown = last != std::string::npos && !in_string && !word.empty();
    return stop(token.begin, fmt::format("it is not JSON: {}{}", why, shown ? ": " + in_quotes(word) : ""));
  }

 private:
  size_t read() const { return size_t(read_ - text_.data()); }

  bool open() {
    if (keys_.size() == size_t{kDeepestJson})
      return stop(read() - 1, fmt::format("it nests deeper than {} levels", kDeepestJson));
    keys_.emplace_back();
    return true;
  }
  bool close() { return keys_.pop_back(), true; }

  bool stop(size_t at, std::string message) {
    const std::string_view before = text_.substr(0, at);
    const size_t line = before.rfind('\n') + 1;  // npos + 1 is 0
    const auto is_character = [](char c) { return (uint8_t(c) & 0xC0) != 0x80; };
    fault_ = {1 + std::count(before.begin(), before.end(), '\n'),
              1 + std::count_if(before.begin() + ptrdiff_t(line), before.end(), is_character),
              std::move(message)};
    return false;
  }

  const std::string_view text_;
  const char* read_;
  std::vector<std::set<std::string>> keys_;  // of the open containers
  std::optional<JsonFault> fault_;
};

}  // namespace

int64_t counted(const json& value, int64_t least) {
  const bool good = value.is_number_integer() && least <= value && value <= kMostCounted;
  return (good ? value : json("no count")).get<int64_t>();
}

std::string without_number(std::string_view what) {
  const size_t end = what.starts_with("[json.exception.") ? what.find("] ") : std::string_view::npos;
  return std::string(end == std::string_view::npos ? what : what.substr(end + 2));
}

std::optional<JsonFault> fault_in_json(std::string_view text) { return Judge(text).fault(); }

json parse_json(std::string_view text, const std::string& file, Exit exit, std::string_view advice) {
  if (const std::optional<JsonFault> fault = fault_in_json(text))
    fail(exit, "{}:{}:{}: {}{}{}", file, fault->line, fault->column, fault->message,
         advice.empty() ? "" : "; ", advice);
  return json::parse(text);
}

json json_or_nothing(std::string_view text) {
  return fault_in_json(text) ? json(json::value_t::discarded) : json::parse(text);
}

}  // namespace cleave
