// From the text of a ds_config to a DsConfig: every problem at once with its position, and a note for every
// key that says what it does here. Nothing is ever silently ignored.
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

// What the value of a key comes from and what it does.
struct Note {
  std::string where;  // file:line:column of a key in the file, else empty
  std::string path;
  std::string value;     // as JSON
  std::string origin;    // user, default, derived, "auto, ...", an option, or "Trainer's default"
  std::string status;    // honoured, no effect here, ...
  std::string meaning;   // what it does, or why it does nothing
  std::string key = {};  // the path as it is described, where the file writes it otherwise
};

// The status of a note on a value that the file and the options leave open.
inline constexpr const char* kNotKnown = "unknown here";

// What "auto" stands for, as a Hugging Face Trainer would fill it in, and what a Trainer does where its file
// has no optimizer or no schedule. An absent value cannot be filled in.
struct AutoValues {
  std::optional<int64_t> micro_batch_size, gradient_accumulation_steps, total_steps;
  std::optional<double> warmup_steps;  // below 1: a share of total_steps
  std::optional<int64_t> hidden_size;
  // Where "auto" is all that the three batch keys say.
  std::optional<int64_t> default_micro_batch_size = {};
  std::optional<double> lr, beta1, beta2, eps, weight_decay, max_grad_norm;
  std::optional<bool> fp16, bf16;
  std::optional<double> warmup_ratio = {};  // of total_steps, where warmup_steps is 0
  std::string schedule = {};                // linear, cosine, constant, constant_with_warmup, or none known
  std::set<std::string> given = {};         // options of the command line, "--learning_rate": not defaults
};

// Steps of the warm-up that the values ask for; nothing where they do not say.
std::optional<int64_t> warmup_steps(const AutoValues& values);

// Who acts on a key: cleave train, PyTorch scripts, or both.
enum class Front : uint8_t { both, train, scripts };
std::string_view name_of(Front front);

struct ReadOptions {
  Front front =
      Front::both;         // who reads the file; a key that only the other acts on is a warning if it is on
  bool strict = false;     // what would be a warning is an error
  int64_t world_size = 1;  // all ranks; those of one pipeline count once in the batch
  std::string world_origin = {};  // for messages: "4 ranks from WORLD_SIZE"
  bool world_assumed = false;     // nobody has said how many ranks there are: messages ask for it
  AutoValues auto_values = {};
  // Where nothing is trained: samples a rank computes at a time. What the file says of batch sizes and of
  // data-parallel ranks is not compared with the ranks that there are.
  std::optional<int64_t> micro_batch_size = {};
  // Nothing is trained: values that follow from the number of training steps may stay open, which is a note
  // with the status kNotKnown.
  bool steps_may_be_open = false;
};

struct ReadResult {
  std::string text;                // of the file, as strict JSON where it could be read to its end
  DsConfig config;                 // complete and resolved when ok()
  std::vector<Problem> problems;   // sorted by position
  std::vector<Note> notes;         // keys of the file in its order, then what was derived, then the defaults
  std::vector<Problem> elsewhere;  // what works here, or is off, and DeepSpeed's newest release refuses

  bool ok() const;  // no errors; there may be warnings
};

// Never throws for bad input: what is wrong is in `problems`.
ReadResult read_ds_config(std::string_view text, const std::string& file_name,
                          const ReadOptions& options = {});
// `path` may also be a configuration in base64, as DeepSpeed's --deepspeed_config may: what is no file and
// decodes to an object.
ReadResult read_ds_config_file(const std::string& path, const ReadOptions& options = {});

// The resolved configuration of a file that must be good: throws Error(usage) with all errors. Warnings are
// in `result` when given.
DsConfig require_ds_config_file(const std::string& path, const ReadOptions& options = {},
                                ReadResult* result = nullptr);

// One line a problem, "file:3:5: error: zero_optimization.stage: expected ..., got ...".
std::string format(const std::vector<Problem>& problems);
// "2 errors (zero_optimization.stage, fp16)": at most three keys, or their positions where an error has no
// key.
std::string name_errors(const std::vector<Problem>& problems);

// One line a note: where, path, value, origin, what it does.
std::string format(const std::vector<Note>& notes);

// A row for every key there is, as documentation: path, type and range, default, status, meaning.
struct KeyRow {
  std::string path, type, default_text, status, meaning;
  std::string honoured_by;  // "cleave train", "scripts" or "both"; empty for a key that is not honoured
};
std::vector<KeyRow> list_keys();

}  // namespace cleave::config
