// Every key of a ds_config, described once. describe() binds the keys that are built to the fields of a
// DsConfig and gives every other key of DeepSpeed's a status and a reason; reading, explaining and
// documenting are loops over the list.
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
  honoured,   // it works
  no_effect,  // accepted; changes neither results nor memory nor what the user sees, `meaning` says why
  warned,     // not built, but changes no result: a warning unless off, an error when strict
  refused,    // not built, and would change results, memory or where results go: an error unless off
  detail,     // read only when the switch named in `with` is on, which is not built or is judged by itself
  section,    // holds other keys
};
std::string_view name_of(Status status);

enum class Type : uint8_t { boolean, integer, number, text, list, object, any };
std::string_view name_of(Type type);

// A field whose values have names (core/choice.h).
struct ChoiceField {
  uint8_t* value;
  std::span<const std::string_view> names;
};

// Where a value goes; the two doubles are a pair such as betas.
using Target = std::variant<std::monostate, bool*, int*, int64_t*, double*, std::string*, ChoiceField,
                            std::optional<bool>*, std::optional<double>*, std::optional<int64_t>*,
                            std::optional<Precision>*, std::array<double*, 2>, std::vector<std::string>*>;

struct Key {
  std::string path;  // "zero_optimization.stage"; <name> stands for any name, [] for the items of a list
  Type type = Type::any;
  Status status = Status::honoured;
  Front front = Front::both;
  Target target;
  std::string default_text;  // as JSON
  std::string meaning;       // what it does; for no_effect, warned and refused: why not
  double min = -std::numeric_limits<double>::infinity(), max = std::numeric_limits<double>::infinity();
  bool above_min = false;            // min itself is outside
  std::vector<std::string> choices;  // of a text, or of each text of a list
  bool any_case = false;             // choices are compared without regard to case
  std::vector<std::string>
      off;           // warned, refused: values that ask for nothing, as JSON; the default is one too
  std::string with;  // detail: the switch
  std::vector<std::string> only_for;  // optimizer or scheduler types that read it
  std::string inert;            // why it changes nothing in the described configuration, naming the other key
  std::string also;             // a part of what is wanted that depends on another key
  bool null_ok = false;         // null stands for the default
  bool or_list_of_one = false;  // [x] stands for x: one parameter group
  bool or_one_text = false;     // "x" stands for ["x"]
  bool infinity_is_never = false;  // an infinite number is stored as 0
  bool never_boolean = false;      // a number that true and false do not stand for
  bool listed_only = false;        // documented, never matched: a pattern for names that are judged elsewhere

  Key& only_in(Front which) { return front = which, *this; }
  Key& in(double low, double high) { return min = low, max = high, *this; }
  Key& at_least(double low) { return min = low, *this; }
  Key& above(double low) { return min = low, above_min = true, *this; }
  Key& one_of(std::vector<std::string> values) { return choices = std::move(values), *this; }
  Key& ignoring_case() { return any_case = true, *this; }
  Key& inert_if(bool condition, std::string why) {
    return condition ? (inert = std::move(why), *this) : *this;
  }
  Key& or_null() { return null_ok = true, *this; }
  Key& not_boolean() { return never_boolean = true, *this; }
  Key& or_list() { return or_list_of_one = true, *this; }
  Key& or_text() { return or_one_text = true, *this; }
  Key& or_infinity() { return infinity_is_never = true, *this; }
};

class Keys {
 public:
  // Everything until the next call is inside this section ("" for the top level), and its honoured keys are
  // those of `front`.
  void section(std::string path, std::string meaning, Front front = Front::both);
  Key& honoured(std::string_view name, Target target, std::string meaning);
  template <Choice E>
  Key& honoured(std::string_view name, E* field, std::string meaning) {
    static_assert(sizeof(E) == 1);
    Key& key =
        honoured(name, ChoiceField{reinterpret_cast<uint8_t*>(field), kNamesOf<E>}, std::move(meaning));
    return key.one_of(names_of<E>());
  }
  // `form` is type=default with choices after the type: "b=true", "i=8", "s(sym|asym)=sym", "n?=null" (? :
  // null allowed); types b, i, n, s, l, o and a (any).
  Key& no_effect(std::string_view name, std::string_view form, std::string why);
  // off: further harmless values, separated by blanks.
  Key& warned(std::string_view name, std::string_view form, std::string why, std::string_view off = "");
  Key& refused(std::string_view name, std::string_view form, std::string why, std::string_view off = "");
  // forms: "name:form name:form ..."; `what` names the feature they belong to.
  void details(std::string with, std::string what, std::string_view forms);

  std::vector<Key> list;

 private:
  Key& add(std::string_view name, Status status, std::string meaning);
  std::string prefix_;
  Front front_ = Front::both;
};

// Defaults are the values that `config` has; inert reasons are those of its present values.
std::vector<Key> describe(DsConfig& config);

// The value as JSON text: "8", "0.001", "\"cpu\"", "null" when the field is empty.
std::string text_of(const Target& target);

// "zero_optimization" of "zero_optimization.stage", "" of a key of the top level.
std::string parent_of(const std::string& path);

// Parts of describe(), one a file.
void describe_training(Keys& keys, DsConfig& config);
void describe_optimizer(Keys& keys, OptimizerConfig& optimizer);
void describe_scheduler(Keys& keys, SchedulerConfig& scheduler, const OptimizerConfig& optimizer);
void describe_own(Keys& keys, DsConfig& config);    // the section "cleave"
void describe_tools(Keys& keys, DsConfig& config);  // what a run tells about its steps
void describe_zero(Keys& keys, ZeroConfig& zero);
void describe_aio(Keys& keys, DsConfig& config);
void describe_pipeline(Keys& keys, PipelineConfig& pipeline);
void describe_tensor_parallel(Keys& keys, TensorParallelConfig& tensor);
void describe_checkpointing(Keys& keys, CheckpointingConfig& checkpointing);
void describe_checkpoint(Keys& keys, CheckpointConfig& checkpoint);
void describe_unbuilt_training(Keys& keys);
void describe_unbuilt_tools(Keys& keys);

}  // namespace cleave::config
