// Description of every ds_config key. describe() binds supported keys to the fields of a DsConfig,
// and gives all other DeepSpeed keys a status and a reason. Reading, explaining and the
// documentation are loops over this list.
#pragma once
#include <array>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "config_schema/ds_config.h"
#include "config_schema/read_config.h"

namespace cleave::config {

enum class Status : uint8_t {
  honoured,   // supported
  no_effect,  // accepted; has no effect on results, memory or output; `meaning` says why
  warned,     // unsupported, and results are at least as precise: a warning unless off, an error if strict
  refused,    // unsupported with effect on results, memory or output: an error unless off
  detail,     // read only if the switch in `with` is on; that switch is unsupported or checked separately
  section,    // contains other keys
};
std::string_view name_of(Status status);

enum class Type : uint8_t { boolean, integer, number, text, list, object, any };
std::string_view name_of(Type type);

// A field with named values (core/choice.h).
struct ChoiceField {
  uint8_t* value;
  std::span<const std::string_view> names;
};

// Destination of a value; two doubles are a pair such as betas.
using Target = std::variant<std::monostate, bool*, int*, int64_t*, double*, std::string*, ChoiceField,
                            std::optional<bool>*, std::optional<double>*, std::optional<int64_t>*,
                            std::optional<Precision>*, std::array<double*, 2>, std::vector<std::string>*,
                            std::vector<int64_t>*>;

struct Key {
  std::string path;  // "zero_optimization.stage"; <name> is any name, [] the items of a list
  Type type = Type::any;
  Status status = Status::honoured;
  Front front = Front::both;
  Target target;
  std::string default_text;  // as JSON
  std::string meaning;       // its effect; for no_effect, warned and refused: the reason
  double min = -std::numeric_limits<double>::infinity(), max = std::numeric_limits<double>::infinity();
  bool above_min = false;            // min itself is invalid
  std::vector<std::string> choices;  // of a string, or of each string in a list
  bool any_case = false;             // choices are case-insensitive
  std::vector<std::string> off;  // warned, refused: JSON values that disable it, in addition to the default
  std::string with;              // detail: the switch
  std::vector<std::string> only_for;  // optimizer or scheduler types that read it
  std::string inert;                  // reason why it has no effect in this configuration, with the other key
  std::string also;                   // addition to the expected value that depends on another key
  std::string not_train;              // scripts only: reason why cleave train rejects it instead of a warning
  std::string not_scripts, not_torch;  // reasons why scripts, or modules that torch computes, do not use it
  bool null_ok = false;                // null means the default
  bool or_list_of_one = false;         // [x] means x: one parameter group
  bool or_one_text = false;            // "x" means ["x"]
  bool infinity_is_never = false;      // infinity is stored as 0
  bool never_boolean = false;          // true and false are not accepted as numbers
  bool listed_only = false;  // documented but never matched: a pattern for names that are checked elsewhere

  Key& only_in(Front which) { return front = which, *this; }
  Key& in(double low, double high) { return min = low, max = high, *this; }
  Key& at_least(double low) { return min = low, *this; }
  Key& above(double low) { return min = low, above_min = true, *this; }
  Key& one_of(std::vector<std::string> values) { return choices = std::move(values), *this; }
  Key& ignoring_case() { return any_case = true, *this; }
  Key& inert_if(bool condition, std::string why) {
    return condition ? (inert = std::move(why), *this) : *this;
  }
  Key& not_in_train(std::string why) { return not_train = std::move(why), *this; }
  // PyTorch scripts do not act on it, or only for a model that the engine computes (cleave.native).
  Key& not_in_scripts(std::string why) { return not_scripts = std::move(why), *this; }
  Key& not_in_torch(std::string why) { return not_torch = std::move(why), *this; }
  Key& or_null() { return null_ok = true, *this; }
  Key& not_boolean() { return never_boolean = true, *this; }
  Key& or_list() { return or_list_of_one = true, *this; }
  Key& or_text() { return or_one_text = true, *this; }
  Key& or_infinity() { return infinity_is_never = true, *this; }
};

class Keys {
 public:
  // Sets the section of all keys until the next call ("" for the top level), and the front of its honoured
  // keys.
  void section(std::string path, std::string meaning, Front front = Front::both);
  Key& honoured(std::string_view name, Target target, std::string meaning);
  template <Choice E>
  Key& honoured(std::string_view name, E* field, std::string meaning) {
    static_assert(sizeof(E) == 1);
    Key& key =
        honoured(name, ChoiceField{reinterpret_cast<uint8_t*>(field), kNamesOf<E>}, std::move(meaning));
    return key.one_of(names_of<E>());
  }
  // `form` is type=default with choices after the type: "b=true", "i=8", "s(sym|asym)=sym",
  // "n?=null" (? means that null is allowed); types b, i, n, s, l, o and a (any).
  Key& no_effect(std::string_view name, std::string_view form, std::string why);
  // off: additional harmless values, separated by blanks.
  Key& warned(std::string_view name, std::string_view form, std::string why, std::string_view off = "");
  Key& refused(std::string_view name, std::string_view form, std::string why, std::string_view off = "");
  // forms: "name:form name:form ..."; `what` names their feature.
  void details(std::string with, std::string what, std::string_view forms);

  std::vector<Key> list;

 private:
  Key& add(std::string_view name, Status status, std::string meaning);
  std::string prefix_;
  Front front_ = Front::both;
};

// Defaults and inert reasons are those of the current values in `config`.
std::vector<Key> describe(DsConfig& config);

// Returns the value as JSON: "8", "0.001", "\"cpu\"", "null" for an empty field.
std::string text_of(const Target& target);

// Returns "zero_optimization" for "zero_optimization.stage", "" for a top-level key.
std::string parent_of(const std::string& path);

// Parts of describe(), one per file.
void describe_training(Keys& keys, DsConfig& config);
void describe_optimizer(Keys& keys, OptimizerConfig& optimizer);
void describe_scheduler(Keys& keys, SchedulerConfig& scheduler, const OptimizerConfig& optimizer);
void describe_own(Keys& keys, DsConfig& config);    // the section "cleave"
void describe_tools(Keys& keys, DsConfig& config);  // reports about steps
void describe_zero(Keys& keys, ZeroConfig& zero);
void describe_aio(Keys& keys, DsConfig& config);
void describe_pipeline(Keys& keys, PipelineConfig& pipeline);
void describe_tensor_parallel(Keys& keys, TensorParallelConfig& tensor);
void describe_checkpointing(Keys& keys, CheckpointingConfig& checkpointing);
void describe_checkpoint(Keys& keys, CheckpointConfig& checkpoint);
void describe_unbuilt_training(Keys& keys);
void describe_unbuilt_tools(Keys& keys);

}  // namespace cleave::config
