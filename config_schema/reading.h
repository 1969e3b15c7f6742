// One reading of one file, shared by the steps of read_ds_config: values and errors by key.
#pragma once
#include <list>
#include <map>
#include <string>
#include <vector>

#include "config_schema/json_text.h"
#include "config_schema/keys.h"
#include "config_schema/read_config.h"

namespace cleave::config {

struct Given {
  std::string path;    // as described: "amp.<kwargs>"
  std::string shown;   // as written: "amp.opt_level"
  TextPosition where;  // of the key
  const JsonValue* value;
  std::string origin = "user";
  bool usable = false;         // the value is valid for the key
  std::string filled_by = {};  // origin "auto": the option with the value, or "Trainer's default"
  std::string open = {};       // meaning of the value if it is unknown here
};

struct Reading {
  const ReadOptions& options;
  std::string file;
  std::vector<Key> keys;  // bound to result.config; described before reading, so defaults are defaults
  std::map<std::string, size_t, std::less<>> index;
  std::vector<std::string> paths;
  std::vector<Given> given;
  std::map<std::string, std::string> derived;  // by path: origin of the value
  ReadResult result;
  std::list<JsonValue> coerced = {};  // values converted to another type than in the file

  const Key* find(std::string_view path) const;
  // Returns the usable value of the key at this described path, or nullptr.
  const JsonValue* value(std::string_view path) const;
  const Given* entry(std::string_view path) const;
  bool boolean(std::string_view path, bool otherwise) const;
  // Returns the truth value in Python of the usable value; false without one.
  bool truth(std::string_view path) const;

  void error(TextPosition where, std::string path, std::string message);
  void warning(TextPosition where, std::string path, std::string message);  // an error if strict
  // Reports the error at the key if it is in the file, otherwise at the top.
  void error_at(std::string_view path, std::string message);
  void warning_at(std::string_view path, std::string message);
  std::string text_of(TextPosition where) const;
};

// Finds, validates and stores every key of the object; suggests names for unknown keys.
void collect_keys(Reading& reading, const JsonValue& root);

// Sets values that the file omits, including optimizer and schedule, from Trainer options;
// contradictions are errors.
void resolve_trainer_options(Reading& reading);

// Derives values and checks combinations of keys.
void resolve_config(Reading& reading);
// The part for the mesh axes and the batch sizes that depend on them.
void resolve_axes(Reading& reading);
void resolve_checkpointing(Reading& reading);

// Adds a problem or a note for every given key, by its status in the resolved configuration, and
// notes for all other keys.
void judge_keys(Reading& reading);

// Value of "auto" at a key. If not `usable`, `missing` says what to add. Usable without a value:
// the default, or for a batch size the value derived from the others.
struct AutoAnswer {
  bool usable = false;
  std::optional<JsonValue> value;
  std::string missing;
  std::string origin = {};  // of the value: an option, or "Trainer's default"
  bool open = false;        // usable, but unknown here
};
// Accelerate's value for "auto" at zero_optimization.stage.
inline constexpr int64_t kStageOfAuto = 2;
// Returns the option that sets "auto" at this path, "Trainer's default", or an empty string.
std::string origin_of_auto(std::string_view path, const AutoValues& values);
AutoAnswer answer_auto(const Key& key, const ReadOptions& options, int stage);

}  // namespace cleave::config
