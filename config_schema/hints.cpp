#include "config_schema/hints.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "config_schema/key_values.h"
#include "config_schema/text_cursor.h"

namespace cleave::config {
namespace {

bool begins_word(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_of_word(char c) { return begins_word(c) || (c >= '0' && c <= '9'); }

// Returns the word at the cursor and moves past it.
std::string_view word_at(TextCursor& at) {
  const size_t begin = at.offset();
  while (is_of_word(at.peek())) at.step();
  return at.since(begin);
}

void skip_string(TextCursor& at) {
  const char end = at.peek();
  for (at.step(); !at.at_end() && at.peek() != end && at.peek() != '\n'; at.step())
    if (at.peek() == '\\' && at.peek(1) != '\0') at.step();
  if (!at.at_end()) at.step();
}

// Checks the position for foreign syntax, outside of strings and comments.
std::optional<std::string> foreign_here(TextCursor& at) {
  if (at.at("\xE2\x80") && uint8_t(at.peek(2)) >= 0x98 && uint8_t(at.peek(2)) <= 0x9F)
    return fmt::format("typographic quotes {} are not valid JSON; use straight quotes, \\\"", at.here());
  for (const std::string_view open : {"${", "{{", "{%", "<%"})
    if (at.at(open))
      return fmt::format("{} starts a template placeholder, and templates are not expanded; write the value",
                         open);
  if (!begins_word(at.peek())) return std::nullopt;
  const std::string_view word = word_at(at);
  if (word != "True" && word != "False" && word != "None") return std::nullopt;
  return fmt::format(
      "Python dictionary instead of JSON: {} is {} in JSON; write that, with keys and strings in double "
      "quotes, as json.dumps does",
      word,
      word == "True"    ? "true"
      : word == "False" ? "false"
                        : "null");
}

// Checks a text that does not start with an object.
std::optional<JsonError> without_object(TextCursor at) {
  const TextPosition begin = at.where();
  constexpr const char* kObject = R"(a configuration is a JSON object: {{ "train_batch_size": 8, ... }})";
  const std::string object = fmt::format(fmt::runtime(kObject));
  if (at.at("---")) return JsonError{begin, "YAML instead of JSON; " + object};
  if (!begins_word(at.peek())) return std::nullopt;
  word_at(at);
  while (at.peek() == ' ' || at.peek() == '-' || is_of_word(at.peek())) at.step();
  if (at.peek() == ':') return JsonError{begin, "YAML instead of JSON; " + object};
  if (at.peek() == '=') return JsonError{begin, "Python or shell text instead of JSON; " + object};
  return std::nullopt;
}

}  // namespace

std::optional<JsonError> foreign_text(std::string_view text) try {
  TextCursor at(text);
  at.skip_byte_order_mark();
  at.skip_blanks();
  if (at.peek() != '{')
    if (std::optional<JsonError> found = without_object(at)) return found;
  for (at.skip_blanks(); !at.at_end(); at.skip_blanks()) {
    if (at.peek() == '"' || at.peek() == '\'') {
      skip_string(at);
      continue;
    }
    const TextPosition where = at.where();
    const size_t before = at.offset();
    if (std::optional<std::string> found = foreign_here(at)) return JsonError{where, *found};
    if (at.offset() == before) at.step();
  }
  return std::nullopt;
} catch (const SyntaxError&) {  // a comment without end; the reader reports it
  return std::nullopt;
}

std::string placeholder_in(std::string_view value) {
  constexpr size_t kLongest = 40;
  constexpr std::array<std::pair<std::string_view, std::string_view>, 2> pairs{{{"${", "}"}, {"{{", "}}"}}};
  for (const auto& [open, close] : pairs) {
    const size_t begin = value.find(open), end = value.find(close, begin == value.npos ? 0 : begin);
    if (begin != value.npos && end != value.npos && end - begin < kLongest)
      return std::string(value.substr(begin, end + close.size() - begin));
  }
  const bool variable = value.size() > 1 && value.size() < kLongest && value[0] == '$' &&
                        std::all_of(value.begin() + 1, value.end(), is_of_word);
  return variable ? std::string(value) : "";
}

std::string section_form(const Reading& r, const std::string& section, const JsonValue& value) {
  struct Form {
    std::string_view section, member, example;
  };
  constexpr Form forms[] = {
      {"activation_checkpointing", "interval", "1"},
      {"checkpoint", "async", "true"},
      {"cleave.fp8", "scaling", "\"delayed\""},
      {"optimizer", "type", "\"AdamW\""},
      {"pipeline", "stages", "2"},
      {"scheduler", "type", "\"WarmupDecayLR\""},
      {"tensor_parallel", "autotp_size", "2"},
      {"tensor_parallel.tp", "tp_size", "2"},
      {"zero_optimization", "stage", "2"},
      {"zero_optimization.offload_optimizer", "device", "\"cpu\""},
      {"zero_optimization.offload_param", "device", "\"cpu\""},
  };
  const Form* form =
      std::find_if(std::begin(forms), std::end(forms), [&](const Form& f) { return f.section == section; });
  const bool usual = form != std::end(forms);
  const std::string member = usual ? std::string(form->member) : "enabled";
  const Key* key = r.find(section + "." + member);
  if (!key) return {};
  std::string shown = usual ? std::string(form->example) : "true";
  const bool same = (key->type == Type::integer && value.integer) ||
                    (key->type == Type::text && value.kind == JsonValue::Kind::text && member != "scaling") ||
                    (key->type == Type::boolean && value.kind == JsonValue::Kind::boolean);
  if (same) shown = compact(value);
  return fmt::format("; write \"{}\": {{\"{}\": {}}}", section.substr(section.rfind('.') + 1), member, shown);
}

}  // namespace cleave::config
