#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "config_schema/hints.h"
#include "config_schema/key_values.h"
#include "config_schema/nearest_key.h"
#include "config_schema/reading.h"
#include "config_schema/unknown_keys.h"

namespace cleave::config {
namespace {

using Kind = JsonValue::Kind;

constexpr size_t kMostProblems = 100;  // more problems mean that the file is not a configuration

struct Alias {
  std::string_view section, name, path;
};
constexpr Alias kAliases[] = {
    {"", "bfloat16", "bf16"},
    {"zero_optimization", "prefetch_bucket_size", "zero_optimization.stage3_prefetch_bucket_size"},
    {"zero_optimization", "param_persistence_threshold",
     "zero_optimization.stage3_param_persistence_threshold"},
    {"zero_optimization", "model_persistence_threshold",
     "zero_optimization.stage3_model_persistence_threshold"},
    {"zero_optimization", "max_live_parameters", "zero_optimization.stage3_max_live_parameters"},
    {"zero_optimization", "max_reuse_distance", "zero_optimization.stage3_max_reuse_distance"},
    {"zero_optimization", "gather_16bit_weights_on_model_save",
     "zero_optimization.stage3_gather_16bit_weights_on_model_save"},
    {"zero_optimization", "module_granularity_threshold",
     "zero_optimization.stage3_module_granularity_threshold"},
    {"zero_optimization", "use_all_reduce_for_fetch_params",
     "zero_optimization.stage3_use_all_reduce_for_fetch_params"},
    {"zero_optimization", "allgather_sequential", "zero_optimization.stage3_allgather_sequential"},
    {"tensor_parallel", "tensor_parallel", "tensor_parallel.tp"},
    {"tensor_parallel", "kernel_inject", "tensor_parallel.replace_with_kernel_inject"},
};

std::string join(std::string_view section, std::string_view name) {
  return section.empty() ? std::string(name) : fmt::format("{}.{}", section, name);
}

// Returns a key for messages: plain if possible, otherwise quoted, escaped and shortened.
std::string join_shown(std::string_view section, std::string_view name) {
  constexpr size_t kLongest = 60;
  const auto plain = [](char c) { return uint8_t(c) >= ' ' && uint8_t(c) < 0x7F && c != '"' && c != '\\'; };
  const bool as_it_is = !name.empty() && name.size() <= kLongest && name.front() != ' ' &&
                        name.back() != ' ' && std::all_of(name.begin(), name.end(), plain);
  return join(section, as_it_is ? std::string(name) : quote(name));
}

const JsonValue* member(const JsonValue& object, std::string_view name) {
  const JsonMember* found = member_of(object, name);
  return found ? &found->value : nullptr;
}

constexpr const char* kStage = "zero_optimization.stage";

class Collector {
 public:
  Collector(Reading& reading, const JsonValue& root) : reading_(reading) {
    const JsonValue* zero = member(root, "zero_optimization");
    const JsonValue* stage = zero ? member(*zero, "stage") : nullptr;
    const std::optional<JsonValue> read = stage ? coerced(*reading.find(kStage), *stage) : std::nullopt;
    if (read) stage = &*read;
    if (stage && stage->kind == Kind::text && stage->text == "auto") stage_ = int(kStageOfAuto);
    if (stage && stage->integer) stage_ = int(std::clamp<int64_t>(*stage->integer, 0, 3));
  }

  // `section` as described, `shown` as written.
  void object(const JsonValue& object, const std::string& section, const std::string& shown) {
    std::map<std::string, Seen> seen;
    // The type decides which other keys are read, so it is read first, wherever it is in the
    // object.
    for (const bool types : {true, false})
      for (const JsonMember& m : object.members)
        if ((m.key == "type") == types) {
          if (is_comment(m.key, section))
            comment(m, shown);
          else
            one(m, section, shown, seen);
        }
  }

 private:
  // A key of an object, in its first spelling.
  struct Seen {
    std::string name;
    TextPosition where;
  };

  void one(const JsonMember& m, const std::string& section, const std::string& shown,
           std::map<std::string, Seen>& seen) {
    if (reading_.result.problems.size() >= kMostProblems) return;
    const std::string path = described(section, m.key);
    const std::string shown_path = join_shown(shown, m.key);
    const Key* key = path.empty() ? nullptr : reading_.find(path);
    if (path.empty()) return unknown(m, section, shown_path);
    const bool pattern = path.find('<') != std::string::npos;
    const auto [it, fresh] = seen.emplace(pattern ? shown_path : path, Seen{m.key, m.where});
    if (!fresh && it->second.name == m.key) return;  // the JSON reader reported it
    if (!fresh)
      return reading_.error(
          m.where, shown_path,
          fmt::format("{} and {} are the same key, {}; keep one (the other is at {})", it->second.name, m.key,
                      is_section(path) ? "section" : "key", reading_.text_of(it->second.where)));
    if (path == "zero_optimization" && m.value.kind == Kind::boolean) return old_zero(m);
    if (!key) {  // a section without an entry
      if (m.value.kind == Kind::object) object(m.value, path, shown_path);
      return;
    }
    leaf(*key, m, shown_path);
    descend(*key, m, shown_path);
  }

  static bool is_comment(const std::string& name, const std::string& section) {
    if (name.starts_with("_") || name.starts_with("//")) return true;
    constexpr std::string_view words[] = {"comment", "name", "project", "description", "notes"};
    return section.empty() && std::find(std::begin(words), std::end(words), name) != std::end(words);
  }

  void comment(const JsonMember& m, const std::string& shown) {
    reading_.given.push_back({"", join_shown(shown, m.key), m.where, &m.value, "user", true});
  }

  // Returns the described path of a name in a section, or an empty string.
  std::string described(const std::string& section, const std::string& name) const {
    for (const Alias& a : kAliases)
      if (a.section == section && a.name == name) return std::string(a.path);
    std::string path = join(section, name);
    if (name.find('.') == std::string::npos && (reading_.find(path) || is_section(path))) return path;
    const std::string begin = section.empty() ? "<" : section + ".<";
    const auto it = reading_.index.lower_bound(begin);
    if (it == reading_.index.end() || !it->first.starts_with(begin)) return {};
    return it->first.substr(0, it->first.find('>', begin.size()) + 1);
  }

  bool is_section(const std::string& path) const {
    const auto it = reading_.index.lower_bound(path + ".");
    return it != reading_.index.end() && it->first.starts_with(path + ".");
  }

  // zero_optimization: true means stage 1, as in the first DeepSpeed releases.
  void old_zero(const JsonMember& m) {
    reading_.result.config.zero.stage = m.value.boolean ? 1 : 0;
    reading_.given.push_back({"zero_optimization", "zero_optimization", m.where, &m.value, "user", true});
  }

  void leaf(const Key& key, const JsonMember& m, const std::string& shown) {
    Given& given = reading_.given.emplace_back(Given{key.path, shown, m.where, &m.value});
    if (!belongs_to_type(key, m, shown)) return;
    if (is_auto(key, m.value)) return store_auto(key, given);
    given.usable = store_value(key, m.value) || store_coerced(key, given);
    bool* const built = key.path == "optimizer.type"   ? &optimizer_built_
                        : key.path == "scheduler.type" ? &scheduler_built_
                                                       : nullptr;
    if (built) *built = given.usable;
    const std::string left = m.value.kind == Kind::text ? placeholder_in(m.value.text) : "";
    if (given.usable && left.empty()) return;
    if (given.usable || !left.empty())
      return problem(m.value.where, shown,
                     fmt::format("{} is not substituted in this file; write the value, {}", quote(left),
                                 wanted_by(key)));
    if (built && m.value.kind == Kind::text)
      return reading_.error(m.value.where, key.path, refusal_of_type(key, m.value.text));
    std::string hint;
    if (m.value.kind == Kind::text && !key.choices.empty()) hint = nearest_word(m.value.text, key.choices);
    if (!hint.empty()) hint = fmt::format("; did you mean \"{}\"?", hint);
    if (key.type == Type::object) hint = section_form(reading_, key.path, m.value);
    problem(m.value.where, shown,
            fmt::format("expected {}, got {}{}", wanted_by(key), got(key, m.value), hint));
  }

  // Reports a problem; ignored inside an unsupported section that is off.
  void problem(TextPosition where, const std::string& shown, const std::string& message) {
    off_ ? reading_.warning(where, shown, message) : reading_.error(where, shown, message);
  }

  // Returns true if the section is unsupported and this object disables it.
  bool is_off_section(const std::string& path, const JsonValue& object) const {
    const Key* key = reading_.find(path + ".enabled");
    if (!key || key->status != Status::refused) return false;
    const JsonValue* enabled = member(object, "enabled");
    return !enabled || is_off(*key, *enabled);
  }

  // Stores values that DeepSpeed's reader also converts: all in its strict sections, elsewhere
  // numbers given as true or false.
  bool store_coerced(const Key& key, Given& given) {
    const bool takes =
        in_strict_section(key.path) || (key.type == Type::boolean && given.value->kind == Kind::number);
    const auto value = takes ? coerced(key, *given.value) : std::nullopt;
    if (!value || !store_value(key, *value)) return false;
    reading_.warning(given.value->where, given.shown,
                     fmt::format("{} is read as {}, as in DeepSpeed; write {}", describe_value(*given.value),
                                 compact(*value), compact(*value)));
    given.value = &reading_.coerced.emplace_back(*value);
    return true;
  }

  static bool is_auto(const Key& key, const JsonValue& v) {
    if (v.kind != Kind::text || v.text != "auto" || key.type == Type::any) return false;
    if (std::find(key.choices.begin(), key.choices.end(), "auto") != key.choices.end()) return false;
    return key.type != Type::text || !key.choices.empty() || answer_auto(key, {}, 0).usable;
  }

  void store_auto(const Key& key, Given& given) {
    given.origin = "auto";
    const AutoAnswer answer = answer_auto(key, reading_.options, stage_);
    given.usable = answer.usable && (!answer.value || store_value(key, *answer.value));
    given.filled_by = answer.origin;
    if (answer.open) given.open = answer.missing;
    if (given.usable) return;
    const std::string why =
        answer.missing.empty()
            ? fmt::format("\"auto\" is not supported for this key; write {}", wanted_by(key))
            : fmt::format("\"auto\" stands for {}, which is unknown here; write {}", answer.missing,
                          wanted_by(key));
    problem(given.value->where, given.shown, why);
  }

  // Arguments are checked for supported types only; an unsupported type is one error.
  bool belongs_to_type(const Key& key, const JsonMember& m, const std::string& shown) {
    const bool optimizer = key.path.starts_with("optimizer.params."),
               scheduler = key.path.starts_with("scheduler.params.");
    if (!optimizer && !scheduler) return true;
    if (!(optimizer ? optimizer_built_ : scheduler_built_)) return false;
    const DsConfig& c = reading_.result.config;
    const std::string_view type = optimizer ? name_of(c.optimizer.type) : name_of(c.scheduler.type);
    if (key.path == "optimizer.params.max_grad_norm") {
      if (is_off(key, m.value)) return true;
      reading_.error(m.where, shown,
                     "clipping is not an optimizer parameter; use the top-level key gradient_clipping");
    } else if (key.status == Status::detail) {
      reading_.error(m.where, shown, fmt::format("is not a parameter of {}: it {}", type, key.meaning));
    } else if (std::find(key.only_for.begin(), key.only_for.end(), type) == key.only_for.end() &&
               !key.only_for.empty()) {
      reading_.error(
          m.where, shown,
          fmt::format(
              "is not a parameter of {}; {} it", type.empty() ? "a schedule without type" : type,
              fmt::format("{} {}", fmt::join(key.only_for, ", "), key.only_for.size() > 1 ? "have" : "has")));
    } else {
      return true;
    }
    return false;
  }

  void descend(const Key& key, const JsonMember& m, const std::string& shown) {
    if (key.status == Status::refused && !is_off(key, m.value)) return;  // the whole section is an error
    if (m.value.kind == Kind::object && is_section(key.path)) {
      const bool before = std::exchange(off_, off_ || is_off_section(key.path, m.value));
      object(m.value, key.path, shown);
      off_ = before;
      return;
    }
    if (m.value.kind != Kind::list || !is_section(key.path + "[]")) return;
    for (size_t i = 0; i < m.value.items.size(); ++i)
      if (m.value.items[i].kind == Kind::object)
        object(m.value.items[i], key.path + "[]", fmt::format("{}[{}]", shown, i));
  }

  void unknown(const JsonMember& m, const std::string& section, const std::string& shown) {
    if (section == "optimizer.params" && !optimizer_built_) return;
    if (section == "scheduler.params" && !scheduler_built_) return;
    const UnknownKey judged = judge_unknown(reading_, section, m);
    judged.warning ? reading_.warning(m.where, shown, judged.message)
                   : problem(m.where, shown, judged.message);
  }

  Reading& reading_;
  int stage_ = 0;
  bool optimizer_built_ = true, scheduler_built_ = true;
  bool off_ = false;  // inside a section that is_off_section()
};

}  // namespace

void collect_keys(Reading& reading, const JsonValue& root) {
  for (const Alias& a : kAliases) reading.paths.push_back(join(a.section, a.name));
  Collector(reading, root).object(root, "", "");
  std::stable_sort(reading.given.begin(), reading.given.end(),
                   [](const Given& a, const Given& b) { return a.where < b.where; });
}

}  // namespace cleave::config
