// Options of a training run in addition to its ds_config, independent of the front end.
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "app/options.h"
#include "app/run/kept_checkpoints.h"
#include "app/run/run_record.h"
#include "config_schema/read_config.h"
#include "data/text/tokenizer.h"

namespace cleave::app {

struct EpochLength {
  int64_t samples = 0, steps = 1;
  // For a resumed training with a changed batch size: the step of the change, and the work before
  // it.
  int64_t first_step = 0;
  double before = 0;           // epochs
  int64_t trained_before = 0;  // samples
  double epochs(int64_t of_steps) const { return before + double(of_steps - first_step) / double(steps); }
  int64_t trained(int64_t step, int64_t batch) const { return trained_before + (step - first_step) * batch; }
};

// An evaluation set: NAME=DATA, or DATA without a name.
struct EvalSet {
  std::string name, data;
};

// Paths and words as the user writes them; optional ones may be empty.
struct RunOptions {
  ModelOptions model;
  RankOptions ranks;
  config::AutoValues values;
  std::string config, data, jsonl_key = "text", output, export_to, resume = "auto", resume_check = "on",
                            init = "auto", metrics, http, trace, report_to = "none";
  std::vector<EvalSet> eval_sets;  // --eval_data in order; the first decides the best loss
  // Original text of each token file, or of the file that lists several. See train_tokens.h.
  std::map<std::string, std::string> texts;
  std::shared_ptr<const text::Tokenizer> tokenizer;  // null: bytes, or unknown
  int64_t steps = 100, eval_interval = 0, save_interval = 0, keep_every = 0, trace_steps = 10;
  std::optional<double> epochs;  // replaces `steps`, which is computed when the data are known
  EpochLength epoch = {};        // of the data, when known
  RecordOptions record;
  static constexpr int64_t kKept = 2;
  std::optional<int64_t> keep;  // absent: as the ds_config says, or kKept
  double save_minutes = 0;
  uint64_t seed = 42;
  int64_t patience = 0;    // early stopping patience; 0: off
  double threshold = 0;    // minimum improvement
  bool keep_best = false;  // keep the checkpoint with the smallest validation loss
  // Returns true if evaluations select the kept checkpoint or stop the training.
  bool judges() const { return keep_best || patience > 0; }
  bool pack = false, strict = false, reset_optimizer = false, reset_adapters = false, ngrams = false,
       verbose = false, quiet = false;

  // Returns the user's value of --data or --eval_data for an input.
  const std::string& named(const std::string& input) const {
    const auto at = texts.find(input);
    return at == texts.end() ? input : at->second;
  }
};

// Returns the rule of --keep and --keep_every, or of nebula in the ds_config without --keep.
KeepRule keep_rule(const RunOptions& options, const config::DsConfig& config);

}  // namespace cleave::app
