#include "config_schema/key_values.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace cleave::config {
namespace {

using Kind = JsonValue::Kind;

bool in_range(const Key& key, double x) {
  return std::isfinite(x) && x <= key.max && (key.above_min ? x > key.min : x >= key.min);
}

// Returns the index of the text in the key's choices, or -1; 0 for keys without choices.
int index_of(const Key& key, const std::string& text) {
  if (key.choices.empty()) return 0;
  for (size_t i = 0; i < key.choices.size(); ++i) {
    const bool same = key.any_case ? lower(key.choices[i]) == lower(text) : key.choices[i] == text;
    if (same) return int(i);
  }
  return -1;
}

std::optional<Precision> precision_of(const std::string& text) {
  const std::string t = lower(text);
  if (t.find("bf") != std::string::npos) return Precision::bf16;
  if (t.find("16") != std::string::npos || t == "half") return Precision::fp16;
  return Precision::fp32;
}

// Whole numbers outside of the range of integers also count as whole.
bool is_whole(const JsonValue& v) { return v.integer || std::fabs(v.number) >= 0x1p63; }

int64_t nearest_integer(const JsonValue& v) {
  if (v.integer) return *v.integer;
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  return v.number > 0 ? kMost : -kMost;
}

bool fits(const Key& key, const JsonValue& v) {
  switch (key.type) {
    case Type::boolean:
      return v.kind == Kind::boolean;
    case Type::integer:
      if (key.infinity_is_never && v.kind == Kind::number && std::isinf(v.number)) return v.number > 0;
      return v.kind == Kind::number && is_whole(v) && in_range(key, v.number);
    case Type::number:
      return v.kind == Kind::number && in_range(key, v.number);
    case Type::text:
      return v.kind == Kind::text && index_of(key, v.text) >= 0;
    case Type::list: {
      if (!key.choices.empty() || std::holds_alternative<std::vector<std::string>*>(key.target)) {
        const auto named = [&](const JsonValue& x) {
          return x.kind == Kind::text && index_of(key, x.text) >= 0;
        };
        return v.kind == Kind::list && std::all_of(v.items.begin(), v.items.end(), named);
      }
      if (std::holds_alternative<std::vector<int64_t>*>(key.target)) {
        const auto whole = [&](const JsonValue& x) {
          return x.kind == Kind::number && x.integer && in_range(key, x.number);
        };
        return v.kind == Kind::list && !v.items.empty() && std::all_of(v.items.begin(), v.items.end(), whole);
      }
      if (!std::holds_alternative<std::array<double*, 2>>(key.target)) return v.kind == Kind::list;
      const auto good = [&](const JsonValue& x) { return x.kind == Kind::number && in_range(key, x.number); };
      return v.kind == Kind::list && v.items.size() == 2 && std::all_of(v.items.begin(), v.items.end(), good);
    }
    case Type::object:
      return v.kind == Kind::object;
    case Type::any:
      return true;
  }
  return false;
}

struct Assign {
  const Key& key;
  const JsonValue& v;
  bool operator()(std::monostate) const { return true; }
  bool operator()(bool* t) const { return *t = v.boolean, true; }
  bool operator()(int* t) const {
    const int64_t n = nearest_integer(v);
    if (n < std::numeric_limits<int>::min() || n > std::numeric_limits<int>::max()) return false;
    return *t = int(n), true;
  }
  bool operator()(int64_t* t) const { return *t = std::isfinite(v.number) ? nearest_integer(v) : 0, true; }
  bool operator()(double* t) const { return *t = v.number, true; }
  bool operator()(std::string* t) const {
    return *t = key.choices.empty() ? v.text : key.choices[size_t(index_of(key, v.text))], true;
  }
  bool operator()(const ChoiceField& t) const {
    const auto at = std::find(t.names.begin(), t.names.end(), key.choices[size_t(index_of(key, v.text))]);
    return *t.value = uint8_t(at - t.names.begin()), true;
  }
  bool operator()(std::optional<double>* t) const { return *t = v.number, true; }
  bool operator()(std::optional<bool>* t) const { return *t = v.boolean, true; }
  bool operator()(std::optional<int64_t>* t) const { return *t = nearest_integer(v), true; }
  bool operator()(std::optional<Precision>* t) const { return *t = precision_of(v.text), true; }
  bool operator()(const std::array<double*, 2>& t) const {
    return *t[0] = v.items[0].number, *t[1] = v.items[1].number, true;
  }
  bool operator()(std::vector<std::string>* t) const {
    t->clear();
    for (const JsonValue& item : v.items) t->push_back(item.text);
    return true;
  }
  bool operator()(std::vector<int64_t>* t) const {
    t->clear();
    for (const JsonValue& item : v.items) t->push_back(*item.integer);
    return true;
  }
};

struct Clear {  // null: optional targets become empty, others keep their default
  void operator()(std::optional<double>* t) const { t->reset(); }
  void operator()(std::optional<int64_t>* t) const { t->reset(); }
  void operator()(std::optional<bool>* t) const { t->reset(); }
  void operator()(std::optional<Precision>* t) const { t->reset(); }
  template <class T>
  void operator()(const T&) const {}
};

std::string bound(double x) {
  return std::floor(x) == x && std::fabs(x) < 1e15 ? fmt::format("{}", int64_t(x)) : fmt::format("{}", x);
}

std::string range_of(const Key& key) {
  const bool low = std::isfinite(key.min), high = std::isfinite(key.max);
  if (low && high)
    return fmt::format(" {} {} to {}", key.above_min ? "above" : "from", bound(key.min), bound(key.max));
  if (low) return fmt::format(" {} {}", key.above_min ? "above" : "of at least", bound(key.min));
  return high ? fmt::format(" of at most {}", bound(key.max)) : "";
}

bool equal(const JsonValue& a, const JsonValue& b) {
  if (a.kind != b.kind || a.items.size() != b.items.size() || a.members.size() != b.members.size())
    return false;
  switch (a.kind) {
    case Kind::null:
      return true;
    case Kind::boolean:
      return a.boolean == b.boolean;
    case Kind::number:
      return a.integer && b.integer ? *a.integer == *b.integer : a.number == b.number;
    case Kind::text:
      return a.text == b.text;
    case Kind::list:
      return std::equal(a.items.begin(), a.items.end(), b.items.begin(), equal);
    case Kind::object:
      return std::equal(
          a.members.begin(), a.members.end(), b.members.begin(),
          [](const auto& x, const auto& y) { return x.key == y.key && equal(x.value, y.value); });
  }
  return false;
}

void write(std::string& out, const JsonValue& v) {
  constexpr size_t kLongest = 120;
  if (out.size() > kLongest) {
    if (!out.ends_with("...")) out += "...";
    return;
  }
  const char* separator = "";
  switch (v.kind) {
    case Kind::null:
      out += "null";
      break;
    case Kind::boolean:
      out += v.boolean ? "true" : "false";
      break;
    case Kind::number:
      out += v.text.substr(0, 40);
      break;
    case Kind::text:
      out += quote(v.text);
      break;
    case Kind::list:
      out += "[";
      for (const JsonValue& item : v.items) {
        if (out.ends_with("...")) return;
        out += separator, write(out, item), separator = ", ";
      }
      out += "]";
      break;
    case Kind::object:
      out += "{";
      for (const JsonMember& m : v.members) {
        if (out.ends_with("...")) return;
        out += separator, out += quote(m.key) + ": ", write(out, m.value), separator = ", ";
      }
      out += "}";
      break;
  }
}

}  // namespace

std::string lower(std::string text) {
  for (char& c : text)
    if (c >= 'A' && c <= 'Z') c = char(c - 'A' + 'a');
  return text;
}

std::string wanted_by(const Key& key) {
  std::string text = std::string(name_of(key.type));
  if (std::holds_alternative<std::array<double*, 2>>(key.target)) text = "a list of two numbers, each";
  if (std::holds_alternative<std::vector<int64_t>*>(key.target))
    text = "a list of one or more integers, each";
  const bool list_of_texts = key.type == Type::list;
  if (!key.choices.empty()) {
    text = list_of_texts ? "a list of" : "one of";
    for (const std::string& c : key.choices)
      text += fmt::format("{} \"{}\"", &c == &key.choices[0] ? "" : ",", c);
  }
  if (key.or_one_text) text += ", or a single string";
  return text + range_of(key) + key.also + (key.null_ok ? ", or null" : "");
}

std::string got(const Key& key, const JsonValue& v) {
  if (std::holds_alternative<std::vector<int64_t>*>(key.target) && v.kind == Kind::list && !v.items.empty())
    return compact(v);
  const bool pair = std::holds_alternative<std::array<double*, 2>>(key.target) && v.kind == Kind::list;
  if (!pair || v.items.size() != 2) return describe_value(v);
  std::string text = compact(v);
  for (size_t i = 0; i < 2; ++i)
    if (const JsonValue& x = v.items[i]; x.kind != Kind::number || !in_range(key, x.number))
      text += fmt::format("; the {}, {}, is not", i == 0 ? "first" : "second", describe_value(x));
  return text;
}

bool store_value(const Key& key, const JsonValue& v) {
  if (v.kind == Kind::null && key.null_ok) {
    std::visit(Clear{}, key.target);
    return true;
  }
  if (key.or_list_of_one && v.kind == Kind::list && v.items.size() == 1) return store_value(key, v.items[0]);
  if (key.or_one_text && v.kind == Kind::text) {
    JsonValue list;
    list.kind = Kind::list, list.items = {v};
    return store_value(key, list);
  }
  return fits(key, v) && std::visit(Assign{key, v}, key.target);
}

bool in_strict_section(std::string_view path) {
  constexpr std::string_view sections[] = {"zero_optimization",
                                           "fp16",
                                           "bf16",
                                           "tensorboard",
                                           "csv_monitor",
                                           "wandb",
                                           "comet",
                                           "comms_logger",
                                           "hybrid_engine",
                                           "compile",
                                           "tensor_parallel",
                                           "timers.throughput",
                                           "weight_quantization"};
  return std::any_of(std::begin(sections), std::end(sections), [&](std::string_view s) {
    return path.starts_with(s) && path.size() > s.size() && path[s.size()] == '.';
  });
}

std::optional<JsonValue> coerced(const Key& key, const JsonValue& v) {
  JsonValue out = v;
  if (key.type == Type::boolean) {
    const std::string word = lower(v.kind == Kind::number && v.integer ? std::to_string(*v.integer) : v.text);
    const auto is_one_of = [&](std::initializer_list<std::string_view> words) {
      return std::find(words.begin(), words.end(), word) != words.end();
    };
    out.kind = Kind::boolean, out.boolean = is_one_of({"1", "on", "yes", "true", "t", "y"});
    const bool known = out.boolean || is_one_of({"0", "off", "no", "false", "f", "n"});
    return known && (v.kind == Kind::number || v.kind == Kind::text) ? std::optional(out) : std::nullopt;
  }
  if (key.type != Type::integer && key.type != Type::number) return std::nullopt;
  if (v.kind == Kind::boolean && key.never_boolean) return std::nullopt;
  if (v.kind == Kind::boolean)
    return read_literal(v.boolean ? "1" : "0", out) ? std::optional(out) : std::nullopt;
  const std::string_view signs = key.type == Type::integer ? "-0123456789" : "-+.eE0123456789";
  if (v.kind != Kind::text || v.text.find_first_not_of(signs) != std::string::npos) return std::nullopt;
  const bool good = read_literal(v.text, out) && out.kind == Kind::number && std::isfinite(out.number);
  return good ? std::optional(out) : std::nullopt;
}

bool same_value(const JsonValue& value, const std::string& json) {
  const JsonDocument document = read_json_text(json);
  return document.complete && equal(value, document.root);
}

bool is_off(const Key& key, const JsonValue& value) {
  if (value.kind == Kind::null || same_value(value, key.default_text)) return true;
  return std::any_of(key.off.begin(), key.off.end(), [&](const std::string& off) {
    if (off != "disabled") return same_value(value, off);
    return std::any_of(value.members.begin(), value.members.end(), [](const JsonMember& m) {
      return m.key == "enabled" && m.value.kind == Kind::boolean && !m.value.boolean;
    });
  });
}

std::string compact(const JsonValue& value) {
  std::string out;
  write(out, value);
  return out;
}

}  // namespace cleave::config
