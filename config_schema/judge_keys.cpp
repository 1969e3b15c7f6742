#include <fmt/core.h>

#include <algorithm>
#include <iterator>
#include <string_view>

#include "config_schema/key_values.h"
#include "config_schema/keys.h"
#include "config_schema/reading.h"

namespace cleave::config {
namespace {

std::string off_values(const Key& key) {
  std::string text = key.default_text;
  for (const std::string& off : key.off)
    if (off != "disabled" && off != key.default_text) text += " or " + off;
  return text;
}

// Keys that DeepSpeed's config class rejects since 0.19.8 (its _REMOVED_TOP_LEVEL_CONFIG_KEYS and
// _REMOVED_ZERO_CONFIG_KEYS), also with values that disable them.
constexpr std::string_view kRemovedFromDeepSpeed[] = {
    "amp",
    "compression_training",
    "curriculum_learning",
    "eigenvalue",
    "elasticity",
    "graph_harvesting",
    "nebula",
    "progressive_layer_drop",
    "quantize_training",
    "sparse_attention",
    "sparse_gradients",
    "zero_optimization.mics_hierarchical_params_gather",
    "zero_optimization.mics_shard_size",
    "zero_optimization.zeropp_loco_param",
};

class Judge {
 public:
  explicit Judge(Reading& reading) : r_(reading), now_(describe(reading.result.config)) {}

  void given(const Given& g) {
    if (g.path.empty())
      return r_.result.notes.push_back(
          {r_.text_of(g.where), g.shown, compact(*g.value), g.origin, "comment", "no component reads it"});
    const size_t at = r_.index.at(g.path);
    const Key &key = r_.keys[at], &now = now_[at];
    Note note{r_.text_of(g.where),
              g.shown,
              compact(*g.value),
              g.origin,
              std::string(name_of(key.status)),
              key.meaning,
              key.path == g.shown ? "" : key.path};
    if (g.origin == "auto" && g.open.empty() && now.target.index() != 0) note.value = text_of(now.target);
    if (!g.filled_by.empty()) note.origin += ", " + g.filled_by;
    const std::string disabled = disabled_by(key);
    if (key.status == Status::section && g.value->kind == JsonValue::Kind::boolean)
      note.status = name_of(Status::honoured),
      note.meaning = fmt::format("the old form of zero_optimization.stage: {}", int(g.value->boolean));
    else if (key.status == Status::section)
      return;
    if (!g.open.empty()) {
      note.status = kNotKnown, note.meaning = fmt::format("{}, set by --steps", g.open);
    } else if (!disabled.empty()) {
      note.status = "off", note.meaning = fmt::format("used only with {}", disabled);
    } else if (key.status == Status::detail) {
      note.meaning = fmt::format("{}; used only with {}", key.meaning, key.with);
    } else {
      judge(key, now, g, note);
    }
    r_.result.notes.push_back(std::move(note));
  }

  // Adds notes for keys that the file does not set: derived values first, then defaults.
  void rest() {
    for (const bool derived : {true, false})
      for (size_t i = 0; i < now_.size(); ++i) {
        const Key& now = now_[i];
        const auto it = r_.derived.find(now.path);
        const bool unread = now.status != Status::honoured || !read_by_type(now);
        const Given* g = r_.entry(now.path);
        // A field set by another key has a changed default when it is described again.
        const bool follows = it != r_.derived.end() || (!g && now.default_text != r_.keys[i].default_text);
        const bool said = g && (!derived || g->origin == "auto");
        if (unread || follows != derived || said) continue;
        if (const bool* const* on = std::get_if<bool*>(&now.target);
            derived && on && **on && of_other_front(now) && r_.entry(parent_of(now.path)))
          tell_of_other_front(r_.entry(parent_of(now.path))->where, now.path);
        const std::string value = now.target.index() == 0 ? now.default_text : text_of(now.target);
        r_.result.notes.push_back({"", now.path, value,
                                   it != r_.derived.end() ? it->second
                                   : derived              ? "derived"
                                                          : "default",
                                   std::string(name_of(now.status)), now.meaning});
      }
  }

 private:
  // Returns the switch of the key's section if it is off and is not this key.
  std::string disabled_by(const Key& key) const {
    const std::string path = parent_of(key.path) + ".enabled";
    const auto it = r_.index.find(path);
    if (it == r_.index.end() || path == key.path) return {};
    const bool* const* enabled = std::get_if<bool*>(&r_.keys[it->second].target);
    return enabled && !**enabled ? fmt::format("{}, which is false", path) : "";
  }

  bool read_by_type(const Key& key) const {
    if (key.only_for.empty()) return true;
    const DsConfig& c = r_.result.config;
    const std::string_view type =
        key.path.starts_with("optimizer") ? name_of(c.optimizer.type) : name_of(c.scheduler.type);
    return std::find(key.only_for.begin(), key.only_for.end(), type) != key.only_for.end();
  }

  bool of_other_front(const Key& key) const {
    const Front front = r_.options.front;
    return key.status == Status::honoured && front != Front::both && key.front != Front::both &&
           key.front != front;
  }

  // A script asks its engine for something that only cleave train does; a file of both may have keys for
  // scripts.
  void tell_of_other_front(TextPosition where, const std::string& path, const std::string& not_train = "") {
    if (r_.options.front == Front::scripts)
      r_.error(where, path, "is not supported in a PyTorch script, only in cleave train; remove it");
    else if (!not_train.empty())
      r_.error(where, path, fmt::format("is not supported in cleave train: {}", not_train));
    else
      r_.warning(where, path, "has no effect in cleave train, only in PyTorch scripts; remove it");
  }

  // Returns the reason why the reading script does not act on a key, or an empty string.
  std::string unused_by_script(const Key& key) const {
    if (r_.options.front != Front::scripts) return {};
    return key.not_scripts.empty() && !r_.result.config.native ? key.not_torch : key.not_scripts;
  }

  // Keys of DeepSpeed are a warning, because DeepSpeed trains with them.
  void judge_unused(const Given& g, const std::string& why, Note& note) {
    note.status = "no effect here", note.meaning = why;
    if (g.path.starts_with("cleave."))
      r_.error(g.where, g.shown, fmt::format("is not supported in this PyTorch script: {}; remove it", why));
    else
      r_.warning(g.where, g.shown, fmt::format("has no effect in this PyTorch script: {}; remove it", why));
  }

  // A section's switch alone is a warning, not the keys that it covers.
  void judge_of_other_front(const Key& now, const Given& g, bool asks, Note& note) {
    note.status = "no effect here", note.meaning = fmt::format("only {} acts on it", name_of(now.front));
    const bool* const* enabled = std::get_if<bool*>(&now.target);
    const bool covered = r_.index.contains(parent_of(now.path) + ".enabled");
    if (enabled && now.path.ends_with(".enabled") ? **enabled : asks && !covered)
      tell_of_other_front(g.where, g.shown, now.not_train);
  }

  void judge(const Key& key, const Key& now, const Given& g, Note& note) {
    const bool asks = g.origin != "auto" && !is_off(key, *g.value);
    if (of_other_front(key)) {
      judge_of_other_front(now, g, asks, note);
    } else if (const std::string why = unused_by_script(key); asks && !why.empty()) {
      judge_unused(g, why, note);
    } else if (key.status == Status::honoured && key.front != Front::both &&
               r_.options.front == Front::both && now.inert.empty()) {
      note.status = fmt::format("honoured by {}", name_of(key.front));
    } else if (!now.inert.empty()) {
      note.status = "inert here", note.meaning = "has no effect: " + now.inert;
      if (asks) r_.warning(g.where, g.shown, note.meaning);
    } else if (key.status == Status::refused && asks) {
      r_.error(g.value->where, g.shown,
               fmt::format("{} is not supported: {}; remove it or set it to {}", compact(*g.value),
                           key.meaning, off_values(key)));
    } else if (key.status == Status::warned && asks) {
      r_.warning(g.value->where, g.shown, fmt::format("is not supported: {}", key.meaning));
    } else if (key.status == Status::refused || key.status == Status::warned) {
      note.status = "off", note.meaning = "has no effect";
    }
  }

  Reading& r_;
  std::vector<Key> now_;
};

}  // namespace

void judge_keys(Reading& reading) {
  Judge judge(reading);
  for (const Given& g : reading.given) {
    if (g.usable) judge.given(g);
    if (std::find(std::begin(kRemovedFromDeepSpeed), std::end(kRemovedFromDeepSpeed), g.path) !=
        std::end(kRemovedFromDeepSpeed))
      reading.result.elsewhere.push_back({reading.text_of(g.where), g.shown,
                                          "DeepSpeed rejects this key since 0.19.8, even if it is off", true,
                                          g.where.line, g.where.column});
  }
  judge.rest();
}

}  // namespace cleave::config
