#include "config_schema/read_config.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>

#include "config_schema/base64.h"
#include "config_schema/hints.h"
#include "config_schema/json_text.h"
#include "config_schema/key_values.h"
#include "config_schema/reading.h"
#include "core/error.h"
#include "core/secrets.h"

namespace cleave::config {
namespace {

Problem problem_of(const std::string& file, TextPosition where, std::string path, std::string message,
                   bool warning) {
  return {fmt::format("{}:{}:{}", file, where.line, where.column),
          std::move(path),
          std::move(message),
          warning,
          where.line,
          where.column};
}

ReadResult whole_file_problem(const std::string& path, const std::string& message) {
  ReadResult result;
  result.problems.push_back({path, "", message, false, 0, 0});
  return result;
}

void index_keys(Reading& r) {
  r.keys = describe(r.result.config);
  for (size_t i = 0; i < r.keys.size(); ++i) {
    if (!r.keys[i].listed_only) r.index.emplace(r.keys[i].path, i);
    r.paths.push_back(r.keys[i].path);
  }
}

// Gives a value, and what is in it, the positions of a value of the file, or this position.
void place(JsonValue& value, const JsonValue* in_file, TextPosition otherwise) {
  value.where = in_file ? in_file->where : otherwise;
  for (JsonMember& m : value.members) {
    const JsonMember* same = in_file ? member_of(*in_file, m.key) : nullptr;
    m.where = same ? same->where : otherwise;
    place(m.value, same ? &same->value : nullptr, m.where);
  }
  for (JsonValue& item : value.items) place(item, nullptr, value.where);
}

void replace_sections(JsonValue& root, std::string_view sections) {
  JsonDocument given = read_json_text(sections);
  CHECK(given.complete && given.root.kind == JsonValue::Kind::object, "sections: not an object");
  for (JsonMember& section : given.root.members) {
    const JsonMember* in_file = member_of(root, section.key);
    section.where = in_file ? in_file->where : TextPosition{};
    place(section.value, in_file ? &in_file->value : nullptr, section.where);
    std::erase_if(root.members, [&](const JsonMember& m) { return m.key == section.key; });
    if (section.value.kind != JsonValue::Kind::null) root.members.push_back(std::move(section));
  }
}

}  // namespace

const Key* Reading::find(std::string_view path) const {
  const auto it = index.find(path);
  return it == index.end() ? nullptr : &keys[it->second];
}

const Given* Reading::entry(std::string_view path) const {
  for (const Given& g : given)
    if (g.path == path) return &g;
  return nullptr;
}

const JsonValue* Reading::value(std::string_view path) const {
  const Given* g = entry(path);
  return g && g->usable && g->origin != "auto" ? g->value : nullptr;
}

bool Reading::boolean(std::string_view path, bool otherwise) const {
  const JsonValue* v = value(path);
  return v && v->kind == JsonValue::Kind::boolean ? v->boolean : otherwise;
}

bool Reading::truth(std::string_view path) const {
  const JsonValue* v = value(path);
  if (!v) return false;
  switch (v->kind) {
    case JsonValue::Kind::null:
      return false;
    case JsonValue::Kind::boolean:
      return v->boolean;
    case JsonValue::Kind::number:
      return v->number != 0;
    case JsonValue::Kind::text:
      return !v->text.empty();
    case JsonValue::Kind::list:
      return !v->items.empty();
    case JsonValue::Kind::object:
      return !v->members.empty();
  }
  return false;
}

std::string Reading::text_of(TextPosition where) const {
  return fmt::format("{}:{}:{}", file, where.line, where.column);
}

void Reading::error(TextPosition where, std::string path, std::string message) {
  result.problems.push_back(problem_of(file, where, std::move(path), std::move(message), false));
}

void Reading::warning(TextPosition where, std::string path, std::string message) {
  result.problems.push_back(problem_of(file, where, std::move(path), std::move(message), !options.strict));
}

void Reading::error_at(std::string_view path, std::string message) {
  const Given* g = entry(path);
  error(g ? g->where : TextPosition{}, g ? g->shown : std::string(path), std::move(message));
}

void Reading::warning_at(std::string_view path, std::string message) {
  const Given* g = entry(path);
  warning(g ? g->where : TextPosition{}, g ? g->shown : std::string(path), std::move(message));
}

bool ReadResult::ok() const {
  return std::all_of(problems.begin(), problems.end(), [](const Problem& p) { return p.warning; });
}

ReadResult read_ds_config(std::string_view text, const std::string& file_name, const ReadOptions& options) {
  Reading r{options, file_name, {}, {}, {}, {}, {}, {}};
  r.result.text = text;
  index_keys(r);
  JsonDocument document = read_json_text(text);
  const bool plain = document.complete && !document.not_json && document.root.kind == JsonValue::Kind::object;
  if (const std::optional<JsonError> foreign = plain ? std::nullopt : foreign_text(text))
    document = {.root = {}, .errors = {*foreign}, .complete = false, .not_json = {}};
  for (const JsonError& e : document.errors) r.error(e.where, "", e.message);
  if (!options.sections.empty() && document.complete && document.root.kind == JsonValue::Kind::object)
    replace_sections(document.root, options.sections);
  if (document.complete) r.result.text = to_json(document.root);
  if (document.not_json)
    r.warning(
        document.not_json->where, "",
        fmt::format("this is {} ({}); the file is read as Hjson, as DeepSpeed reads it",
                    document.not_json->message.ends_with("got \"'\"") ? "Python dictionary instead of JSON"
                                                                      : "not JSON",
                    document.not_json->message));
  if (document.complete && document.root.kind != JsonValue::Kind::object) {
    r.error(document.root.where, "",
            fmt::format("expected a JSON object, got {}", describe_value(document.root)));
  } else if (document.complete) {
    collect_keys(r, document.root);
    resolve_config(r);
    judge_keys(r);
  }
  std::stable_sort(r.result.problems.begin(), r.result.problems.end(),
                   [](const Problem& a, const Problem& b) {
                     return std::pair(a.line, a.column) < std::pair(b.line, b.column);
                   });
  return std::move(r.result);
}

ReadResult read_ds_config_file(const std::string& path, const ReadOptions& options) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error))
    return whole_file_problem(path, "is a directory; name a JSON file in it");
  // Opening a named pipe would wait for a writer, and a device has no end.
  if (std::filesystem::exists(path, error) && !std::filesystem::is_regular_file(path, error))
    return whole_file_problem(path, "is not a regular file; save its contents to a file first");
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path.c_str(), "rb"), std::fclose);
  if (!file) {
    const int why = errno;
    if (const std::string text = decode_base64(path);
        !text.empty() && text.find_first_not_of(" \t\r\n") == text.find('{'))
      return read_ds_config(text, "base64", options);
    constexpr size_t kLongest = 200;
    return whole_file_problem(path.size() > kLongest ? path.substr(0, kLongest) + "..." : path,
                              fmt::format("cannot be read: {}", std::strerror(why)));
  }
  constexpr size_t kEnough = size_t{2} << 20;  // more than the reader accepts
  std::string text(kEnough, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), file.get()));
  if (std::ferror(file.get()))
    return whole_file_problem(path, fmt::format("cannot be read: {}", std::strerror(errno)));
  return read_ds_config(text, path, options);
}

DsConfig require_ds_config_file(const std::string& path, const ReadOptions& options, ReadResult* result) {
  ReadResult read = read_ds_config_file(path, options);
  std::vector<Problem> errors;
  std::copy_if(read.problems.begin(), read.problems.end(), std::back_inserter(errors),
               [](const Problem& p) { return !p.warning; });
  const DsConfig config = read.config;
  if (result) *result = std::move(read);
  if (!errors.empty()) {
    std::string text = format(errors);
    text.pop_back();
    fail(Exit::usage, "{}", text.substr(std::string_view("error: ").size()));
  }
  return config;
}

std::string format(const std::vector<Problem>& problems) {
  std::string out;
  for (const Problem& p : problems)
    out += fmt::format("{}: {}\n", p.warning ? "warning" : "error", format(p));
  return out;
}

std::string format(const Problem& p) {
  return fmt::format("{}: {}{}{}", p.where, p.path, p.path.empty() ? "" : ": ", p.message);
}

std::string name_errors(const std::vector<Problem>& problems) {
  constexpr size_t kNamed = 3;
  std::vector<std::string> named;
  size_t errors = 0;
  for (const Problem& p : problems) {
    if (p.warning) continue;
    std::string name = p.path.empty() ? p.where : p.path;
    if (++errors <= kNamed && std::ranges::count(named, name) == 0) named.push_back(std::move(name));
  }
  return fmt::format("{} error{} ({}{})", errors, errors == 1 ? "" : "s", fmt::join(named, ", "),
                     errors > kNamed ? ", ..." : "");
}

std::string format(const std::vector<Note>& notes) {
  std::string out;
  for (const Note& n : notes)
    out += fmt::format("{} = {} ({}): {}: {}\n", n.path, without_secrets(n.value),
                       n.where.empty() ? n.origin : n.origin + ", " + n.where, n.status, n.meaning);
  return out;
}

std::vector<KeyRow> list_keys() {
  DsConfig config;
  std::vector<KeyRow> rows;
  for (const Key& key : describe(config)) {
    std::string meaning = key.meaning;
    if (!key.with.empty()) meaning += fmt::format("; used only with {}", key.with);
    std::string only;
    for (const std::string& type : key.only_for) only += (only.empty() ? "" : ", ") + type;
    if (!only.empty()) meaning += fmt::format(" ({})", only);
    rows.push_back({key.path, wanted_by(key), key.default_text, std::string(name_of(key.status)),
                    std::move(meaning),
                    key.status == Status::honoured ? std::string(name_of(key.front)) : ""});
  }
  return rows;
}

}  // namespace cleave::config
