#include "config_schema/unknown_keys.h"

#include <fmt/core.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <span>

#include "config_schema/key_values.h"
#include "config_schema/keys.h"
#include "config_schema/meant_keys.h"
#include "config_schema/nearest_key.h"

namespace cleave::config {
namespace {

using Kind = JsonValue::Kind;

// Words in names that request another training than full training of the unchanged model.
constexpr std::string_view kNotBuilt[] = {
    "qlora",   "dora",         "prompt", "quantization", "quantize", "quant", "bnb",    "4bit",   "8bit",
    "int4",    "int8",         "nf4",    "gptq",         "awq",      "moe",   "ema",    "freeze", "frozen",
    "distill", "distillation", "dpo",    "grpo",         "ppo",      "rlhf",  "reward", "pruning"};
// Words in names that request low-rank adapters.
constexpr std::string_view kAdapters[] = {"peft", "lora", "adapter", "adapters"};

bool speaks_of(std::span<const std::string_view> words, std::string_view name) {
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find_first_of("_-. ", begin), name.size());
    if (std::find(words.begin(), words.end(), name.substr(begin, end - begin)) != words.end()) return true;
    begin = end + 1;
  }
  return false;
}

constexpr const char* kForeign = "unknown key; it has no effect";

std::string join(const std::string& section, const std::string& name) {
  return section.empty() ? name : section + "." + name;
}

// {"a": {"b": ...}} for a.b.
std::string nested(std::string_view path) {
  const size_t dot = path.find('.');
  if (dot == std::string_view::npos) return fmt::format("{{\"{}\": ...}}", path);
  return fmt::format("{{\"{}\": {}}}", path.substr(0, dot), nested(path.substr(dot + 1)));
}

bool is_section(const Reading& r, const std::string& path) {
  const auto it = r.index.lower_bound(path + ".");
  return it != r.index.end() && it->first.starts_with(path + ".");
}

// Returns true if a member of the object is a key of the section, or a typo of one.
bool belongs_in(const Reading& r, const std::string& section, const JsonValue& object) {
  return std::any_of(object.members.begin(), object.members.end(), [&](const JsonMember& m) {
    const Suggestion near = nearest_key(section, m.key, r.paths);
    return r.find(join(section, m.key)) || (!near.path.empty() && !near.other_level);
  });
}

// Returns the key that the name is a typo of, or a supported key of this name in another section.
Suggestion near_key(const Reading& r, const std::string& section, const JsonMember& m) {
  const bool object = m.value.kind == Kind::object;
  std::vector<std::string> paths;
  for (const std::string& path : r.paths) {
    const Key* key = r.find(path);
    const bool here = parent_of(path) == section;
    if (!here && m.key == "enabled") continue;  // many sections have it
    const bool built = key && (key->status == Status::honoured || key->status == Status::section);
    if ((here || built) && (!object || is_section(r, path) || !key)) paths.push_back(path);
  }
  const Suggestion near = nearest_key(section, m.key, paths);
  const bool foreign = object && section.empty() && !near.path.empty() && !belongs_in(r, near.path, m.value);
  return foreign ? Suggestion{} : near;
}

// Returns true if the name alone suggests a top-level key of a ds_config. In an object named after
// DeepSpeed, any known key counts. Elsewhere only honoured keys count, and sections with honoured
// keys and a matching member, because other programs also use names such as log_level and wandb, the
// latter with the same members.
bool is_top_level_key(const Reading& r, const JsonMember& m, bool named) {
  const std::string path = m.key == "bfloat16" ? "bf16" : m.key;
  const Meant* row = named ? meant_by("", m.key) : nullptr;
  if (row && !row->key.empty()) return true;
  const Key* key = r.find(path);
  if (!key || path.find('.') != std::string::npos) return false;
  if (named) return true;
  if (key->status != Status::section) return key->status == Status::honoured;
  bool honours = false;
  if (path == "wandb") return false;
  for (auto it = r.index.lower_bound(path + "."); it != r.index.end() && it->first.starts_with(path + ".");
       ++it)
    honours = honours || r.keys[it->second].status == Status::honoured;
  return honours && std::any_of(m.value.members.begin(), m.value.members.end(), [&](const JsonMember& inner) {
           return r.find(join(path, inner.key)) != nullptr;
         });
}

// Path of a configuration inside the object, and its known keys; empty if there is none.
struct Nested {
  std::string path, keys;
};
Nested find_nested(const Reading& r, const std::string& path, const JsonValue& value, bool named) {
  Nested found{path, {}};
  for (const JsonMember& m : value.members)
    if (is_top_level_key(r, m, named) && found.keys.size() < 80)
      found.keys += (found.keys.empty() ? "" : ", ") + m.key;
  for (const JsonMember& m : value.members)
    if (found.keys.empty()) found = find_nested(r, fmt::format("{}.{}", path, quote(m.key)), m.value, named);
  for (size_t i = 0; i < value.items.size() && found.keys.empty(); ++i)
    found = find_nested(r, fmt::format("{}[{}]", path, i), value.items[i], named);
  return found;
}

// Reports a whole configuration inside an object that is not read, or in a file named by such a
// key.
std::string nested_configuration(const Reading& r, const JsonMember& m) {
  constexpr std::string_view kNames[] = {"deepspeed", "deepspeed_config", "deepspeed_config_file",
                                         "deepspeed_plugin", "ds_config"};
  const bool named = std::find(std::begin(kNames), std::end(kNames), lower(m.key)) != std::end(kNames);
  if (named && m.value.kind == Kind::text && !m.value.text.empty())
    return fmt::format("unknown key with the file {}; pass that file as --deepspeed_config",
                       quote(m.value.text));
  const Nested found = find_nested(r, quote(m.key), m.value, named);
  if (found.keys.empty()) return {};
  return fmt::format(
      "unknown key that contains a configuration: {} in {}; move its contents to the top level, or prefix "
      "the name with _ if another program reads it",
      found.keys, found.path);
}

UnknownKey meant(const std::string& section, const std::string& key) {
  const bool here = parent_of(key) == section;
  return {false, here ? fmt::format("unknown key; did you mean \"{}\"?", key.substr(key.rfind('.') + 1))
                      : fmt::format("unknown key; did you mean {}?", key)};
}

UnknownKey judge_meant(const Reading& r, const std::string& section, const Meant& row, const JsonMember& m) {
  if (row.when == Meant::When::warning) return {true, std::string(row.says)};
  if (asks_for_nothing(row, m.value)) return {true, kForeign};
  if (row.key.empty()) return {false, fmt::format("unknown key; {}", row.says)};
  const std::string key(row.key), parent = parent_of(key);
  const bool whole = m.value.kind == Kind::object && !is_section(r, key) && !parent.empty() &&
                     belongs_in(r, parent, m.value);
  return meant(section, whole ? parent : key);
}

}  // namespace

UnknownKey judge_unknown(const Reading& r, const std::string& section, const JsonMember& m) {
  if (const Meant* row = meant_by(section, m.key)) return judge_meant(r, section, *row, m);
  if (section.empty())
    if (std::string nested = nested_configuration(r, m); !nested.empty()) return {false, std::move(nested)};
  if (const std::string path = join(section, m.key); m.key.find('.') != std::string::npos && r.find(path))
    return {false, fmt::format("a dot in a name opens no section; write {}", nested(path))};
  // A name that is nearly one of other programs is rather that than a typo of a key in another section.
  const Suggestion near = near_key(r, section, m);
  const Meant* row = nearly_meant_by(section, m.key);
  const bool exact = near.path.ends_with("." + m.key);
  if (!near.path.empty() && (!row || !near.other_level || exact)) return meant(section, near.path);
  if (row) return judge_meant(r, section, *row, m);
  if (!section.empty()) return {false, fmt::format("unknown key in {}", section)};
  if (speaks_of(kAdapters, m.key) && !asks_for_nothing(m.value))
    return {false,
            R"(unknown key; adapters are asked for by {"cleave": {"lora": {"rank": 8, "targets": [...]}}})"};
  if (speaks_of(kNotBuilt, m.key) && !asks_for_nothing(m.value))
    return {false, "is not supported; remove it to train without this feature"};
  return {true, kForeign};
}

}  // namespace cleave::config
