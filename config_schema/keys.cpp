#include "config_schema/keys.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "config_schema/json_text.h"
#include "core/error.h"

namespace cleave::config {
namespace {

Type type_of(const Target& target) {
  struct Visitor {
    Type operator()(std::monostate) const { return Type::any; }
    Type operator()(bool*) const { return Type::boolean; }
    Type operator()(int*) const { return Type::integer; }
    Type operator()(int64_t*) const { return Type::integer; }
    Type operator()(double*) const { return Type::number; }
    Type operator()(std::string*) const { return Type::text; }
    Type operator()(const ChoiceField&) const { return Type::text; }
    Type operator()(std::optional<bool>*) const { return Type::boolean; }
    Type operator()(std::optional<double>*) const { return Type::number; }
    Type operator()(std::optional<int64_t>*) const { return Type::integer; }
    Type operator()(std::optional<Precision>*) const { return Type::text; }
    Type operator()(const std::array<double*, 2>&) const { return Type::list; }
    Type operator()(std::vector<std::string>*) const { return Type::list; }
    Type operator()(std::vector<int64_t>*) const { return Type::list; }
  };
  return std::visit(Visitor{}, target);
}

Type type_of(char letter) {
  switch (letter) {
    case 'b':
      return Type::boolean;
    case 'i':
      return Type::integer;
    case 'n':
      return Type::number;
    case 's':
      return Type::text;
    case 'l':
      return Type::list;
    case 'o':
      return Type::object;
    case 'a':
      return Type::any;
    default:
      break;
  }
  fail(Exit::internal, "no type is written '{}'", letter);
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(separator, begin), text.size());
    if (end > begin) parts.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

void apply_form(Key& key, std::string_view form) {
  const size_t equals = form.find('=');
  CHECK(!form.empty() && equals != std::string_view::npos, "{}: a form is type=default, got '{}'", key.path,
        form);
  key.type = type_of(form[0]);
  key.default_text = form.substr(equals + 1);
  key.null_ok = form[equals - 1] == '?' || key.default_text == "null";
  const size_t open = form.find('('), close = form.find(')');
  if (open < equals && close < equals) key.choices = split(form.substr(open + 1, close - open - 1), '|');
}

}  // namespace

std::string_view name_of(Status status) {
  constexpr std::string_view names[] = {"honoured",           "no effect here", "not built, warned about",
                                        "not built, refused", "detail",         "section"};
  return names[size_t(status)];
}

std::string_view name_of(Front front) {
  constexpr std::string_view names[] = {"both", "cleave train", "scripts"};
  return names[size_t(front)];
}

std::string_view name_of(Type type) {
  constexpr std::string_view names[] = {"true or false", "an integer", "a number", "a string",
                                        "a list",        "an object",  "any value"};
  return names[size_t(type)];
}

Key& Keys::add(std::string_view name, Status status, std::string meaning) {
  Key& key = list.emplace_back();
  key.path = prefix_.empty() ? std::string(name) : fmt::format("{}.{}", prefix_, name);
  key.status = status;
  key.meaning = std::move(meaning);
  return key;
}

void Keys::section(std::string path, std::string meaning, Front front) {
  prefix_ = "", front_ = front;
  const bool known = std::any_of(list.begin(), list.end(), [&](const Key& key) { return key.path == path; });
  if (!path.empty() && !known) {
    Key& key = add(path, Status::section, std::move(meaning));
    key.type = Type::object, key.default_text = "{}", key.null_ok = true;
  }
  prefix_ = std::move(path);
}

Key& Keys::honoured(std::string_view name, Target target, std::string meaning) {
  Key& key = add(name, Status::honoured, std::move(meaning));
  key.type = type_of(target);
  key.default_text = text_of(target);
  key.null_ok = key.default_text == "null";
  key.target = target, key.front = front_;
  return key;
}

Key& Keys::no_effect(std::string_view name, std::string_view form, std::string why) {
  Key& key = add(name, Status::no_effect, std::move(why));
  apply_form(key, form);
  return key;
}

Key& Keys::warned(std::string_view name, std::string_view form, std::string why, std::string_view off) {
  Key& key = add(name, Status::warned, std::move(why));
  apply_form(key, form);
  key.off = split(off, ' ');
  return key;
}

Key& Keys::refused(std::string_view name, std::string_view form, std::string why, std::string_view off) {
  Key& key = add(name, Status::refused, std::move(why));
  apply_form(key, form);
  key.off = split(off, ' ');
  return key;
}

void Keys::details(std::string with, std::string what, std::string_view forms) {
  for (const std::string& entry : split(forms, ' ')) {
    const size_t colon = entry.find(':');
    CHECK(colon != std::string::npos, "a detail is name:form, got '{}'", entry);
    Key& key = add(std::string_view(entry).substr(0, colon), Status::detail, what);
    apply_form(key, std::string_view(entry).substr(colon + 1));
    key.with = with;
  }
}

std::string text_of(const Target& target) {
  struct Visitor {
    std::string operator()(std::monostate) const { return "null"; }
    std::string operator()(const bool* v) const { return *v ? "true" : "false"; }
    std::string operator()(const int* v) const { return fmt::format("{}", *v); }
    std::string operator()(const int64_t* v) const { return fmt::format("{}", *v); }
    std::string operator()(const double* v) const { return fmt::format("{}", *v); }
    std::string operator()(const std::string* v) const { return json_string(*v); }
    std::string operator()(const ChoiceField& v) const { return fmt::format("\"{}\"", v.names[*v.value]); }
    std::string operator()(const std::optional<bool>* v) const {
      return !*v ? "null" : **v ? "true" : "false";
    }
    std::string operator()(const std::optional<double>* v) const {
      return *v ? fmt::format("{}", **v) : "null";
    }
    std::string operator()(const std::optional<int64_t>* v) const {
      return *v ? fmt::format("{}", **v) : "null";
    }
    std::string operator()(const std::optional<Precision>* v) const {
      return *v ? fmt::format("\"{}\"", name_of(**v)) : "null";
    }
    std::string operator()(const std::vector<std::string>* v) const {
      std::string list;
      for (const std::string& item : *v) list += (list.empty() ? "" : ", ") + json_string(item);
      return "[" + list + "]";
    }
    std::string operator()(const std::vector<int64_t>* v) const {
      return fmt::format("[{}]", fmt::join(*v, ", "));
    }
    std::string operator()(const std::array<double*, 2>& v) const {
      return fmt::format("[{}, {}]", *v[0], *v[1]);
    }
  };
  return std::visit(Visitor{}, target);
}

std::string parent_of(const std::string& path) {
  const size_t dot = path.rfind('.');
  return dot == std::string::npos ? "" : path.substr(0, dot);
}

std::vector<Key> describe(DsConfig& config) {
  Keys keys;
  describe_training(keys, config);
  describe_zero(keys, config.zero);
  describe_aio(keys, config);
  describe_pipeline(keys, config.pipeline);
  describe_tensor_parallel(keys, config.tensor_parallel);
  describe_checkpointing(keys, config.checkpointing);
  describe_checkpoint(keys, config.checkpoint);
  describe_unbuilt_training(keys);
  describe_unbuilt_tools(keys);
  return std::move(keys.list);
}

}  // namespace cleave::config
