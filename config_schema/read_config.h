// Reads the text of a ds_config into a DsConfig, with all problems at their positions and a note on
// the effect of every key. No key is silently ignored.
#pragma once
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "config_schema/ds_config.h"

namespace cleave::config {

struct Problem {
  std::string where;  // file:line:column
  std::string path;   // the key, or empty
  std::string message;
  bool warning = false;
  int line = 0, column = 0;
};

// Origin and effect of a key's value.
struct Note {
  std::string where;  // file:line:column of a key in the file, otherwise empty
  std::string path;
  std::string value;     // as JSON
  std::string origin;    // user, default, derived, "auto, ...", an option, or "Trainer's default"
  std::string status;    // honoured, no effect here, ...
  std::string meaning;   // effect, or the reason why it has none
  std::string key = {};  // the described path, if the file writes it in another form
};

// Status of a value that the file and the options leave undefined.
inline constexpr const char* kNotKnown = "unknown here";

// Values for "auto", as the Hugging Face Trainer sets them, and the Trainer's optimizer and
// schedule for files without. Absent values are unknown.
struct AutoValues {
  std::optional<int64_t> micro_batch_size, gradient_accumulation_steps, total_steps;
  std::optional<double> warmup_steps;  // below 1: a share of total_steps
  std::optional<int64_t> hidden_size;
  // Micro-batch size if all three batch keys are "auto".
  std::optional<int64_t> default_micro_batch_size = {};
  std::optional<double> lr, beta1, beta2, eps, weight_decay, max_grad_norm;
  std::optional<bool> fp16, bf16;
  std::optional<double> warmup_ratio = {};  // share of total_steps, if warmup_steps is 0
  std::string schedule = {};         // linear, cosine, constant, constant_with_warmup, or empty if unknown
  std::set<std::string> given = {};  // options on the command line, "--learning_rate": not defaults
};

// Returns the number of warm-up steps of the values; empty if undefined.
std::optional<int64_t> warmup_steps(const AutoValues& values);

// Who acts on a key: cleave train, PyTorch scripts, or both.
enum class Front : uint8_t { both, train, scripts };
std::string_view name_of(Front front);

struct ReadOptions {
  Front front = Front::both;      // the reader; an enabled key of the other front is a warning
  bool strict = false;            // warnings are errors
  int64_t world_size = 1;         // all ranks; those of one pipeline count once in the batch
  std::string world_origin = {};  // for messages: "4 ranks from WORLD_SIZE"
  bool world_assumed = false;     // the number of ranks is unknown; messages ask for it
  AutoValues auto_values = {};
  // JSON object of sections that a script has set instead of those of the file; null removes one. Problems
  // in them are at the key of the file, or else at its section or the top.
  std::string sections = {};
  // Without training: samples per rank and forward. Batch sizes and data-parallel ranks of the file
  // are then not compared with the actual ranks.
  std::optional<int64_t> micro_batch_size = {};
  // Without training: values that depend on the number of steps may stay undefined, with a note of
  // status kNotKnown.
  bool steps_may_be_open = false;
};

struct ReadResult {
  std::string text;                // of the file, as strict JSON if it was read completely
  DsConfig config;                 // complete and resolved if ok()
  std::vector<Problem> problems;   // sorted by position
  std::vector<Note> notes;         // keys in file order, then derived values, then defaults
  std::vector<Problem> elsewhere;  // keys that work or are off here, but fail in the newest DeepSpeed

  bool ok() const;  // no errors; there may be warnings
};

// Never throws for invalid input; errors are in `problems`.
ReadResult read_ds_config(std::string_view text, const std::string& file_name,
                          const ReadOptions& options = {});
// `path` may also be a configuration in base64, as for DeepSpeed's --deepspeed_config: not a file,
// and it decodes to an object.
ReadResult read_ds_config_file(const std::string& path, const ReadOptions& options = {});

// Returns the resolved configuration of a file; throws Error(usage) with all errors. Warnings are
// in `result` if given.
DsConfig require_ds_config_file(const std::string& path, const ReadOptions& options = {},
                                ReadResult* result = nullptr);

// Formats one line per problem, "file:3:5: error: zero_optimization.stage: expected ..., got ...".
std::string format(const std::vector<Problem>& problems);
std::string format(const Problem& problem);  // without "error: " and the line break
// Returns "2 errors (zero_optimization.stage, fp16)", with at most three keys, or positions of
// errors without a key.
std::string name_errors(const std::vector<Problem>& problems);

// Formats one line per note: position, path, value, origin, effect.
std::string format(const std::vector<Note>& notes);

// A row of the key documentation: path, type and range, default, status, meaning.
struct KeyRow {
  std::string path, type, default_text, status, meaning;
  std::string honoured_by;  // "cleave train", "scripts" or "both"; empty for a key that is not honoured
};
std::vector<KeyRow> list_keys();

}  // namespace cleave::config
