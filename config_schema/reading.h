// One pass over one file: what the file gave, key by key, and what was wrong with it. The steps of
// read_ds_config share it.
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
  bool usable = false;         // the value fits the key
  std::string filled_by = {};  // origin "auto": the option that says the value, or "Trainer's default"
  std::string open = {};       // what the value stands for, where it is not known here
};

struct Reading {
  const ReadOptions& options;
  std::string file;
  std::vector<Key> keys;  // bound to result.config, described before anything was read: defaults are defaults
  std::map<std::string, size_t, std::less<>> index;
  std::vector<std::string> paths;
  std::vector<Given> given;
  std::map<std::string, std::string> derived;  // path to how its value came about
  ReadResult result;
  std::list<JsonValue> coerced = {};  // values read as another type than the file's

  const Key* find(std::string_view path) const;
  // The usable value of the key at this described path, or nullptr.
  const JsonValue* value(std::string_view path) const;
  const Given* entry(std::string_view path) const;
  bool boolean(std::string_view path, bool otherwise) const;
  // What Python makes of the usable value as a condition; false without one.
  bool truth(std::string_view path) const;

  void error(TextPosition where, std::string path, std::string message);
  void warning(TextPosition where, std::string path, std::string message);  // an error when strict
  // The error stands at the key if it is in the file, else at the top.
  void error_at(std::string_view path, std::string message);
  void warning_at(std::string_view path, std::string message);
  std::string text_of(TextPosition where) const;
};

// Walks the object: finds, checks and stores every key, suggests for those that are unknown.
void collect_keys(Reading& reading, const JsonValue& root);

// Lets a Trainer's options say what the file leaves out, the optimizer and the schedule included, and refuses
// those that contradict it.
void resolve_trainer_options(Reading& reading);

// Fills in what follows from the values given and checks what no key can check alone.
void resolve_config(Reading& reading);
// Its part that concerns the axes of the mesh and the batch sizes that follow from them.
void resolve_axes(Reading& reading);

// A problem or a note for every key given, by its status in the resolved configuration, and notes for the
// rest.
void judge_keys(Reading& reading);

// The value that "auto" stands for at this key. `usable` false: it cannot be filled in, and `missing` says
// what would help; usable without a value: the default, or for a batch size what follows from the others.
struct AutoAnswer {
  bool usable = false;
  std::optional<JsonValue> value;
  std::string missing;
  std::string origin = {};  // of the value: an option, or "Trainer's default"
  bool open = false;        // usable, but not known here
};
// What Accelerate puts instead of "auto" at zero_optimization.stage.
inline constexpr int64_t kStageOfAuto = 2;
// The option that says what "auto" stands for at this path, "Trainer's default", or nothing.
std::string origin_of_auto(std::string_view path, const AutoValues& values);
AutoAnswer answer_auto(const Key& key, const ReadOptions& options, int stage);

}  // namespace cleave::config
