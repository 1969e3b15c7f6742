// What is wanted of a training besides its ds_config, whoever asks for it.
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "app/options.h"
#include "app/run/kept_checkpoints.h"
#include "config_schema/read_config.h"
#include "data/text/tokenizer.h"

namespace cleave::app {

struct EpochLength {
  int64_t samples = 0, steps = 1;
  // If a resumed training had steps of another size: its step then, and what it had done.
  int64_t first_step = 0;
  double before = 0;           // epochs
  int64_t trained_before = 0;  // samples
  double epochs(int64_t of_steps) const { return before + double(of_steps - first_step) / double(steps); }
  int64_t trained(int64_t step, int64_t batch) const { return trained_before + (step - first_step) * batch; }
};

// What a run is evaluated on: NAME=DATA, or DATA alone, without a name.
struct EvalSet {
  std::string name, data;
};

// All paths and words are as a user writes them; what may be left out is empty.
struct RunOptions {
  ModelOptions model;
  RankOptions ranks;
  config::AutoValues values;
  std::string config, data, jsonl_key = "text", output, export_to, resume = "auto", resume_check = "on",
                            init = "auto", metrics, trace;
  std::vector<EvalSet> eval_sets;  // of --eval_data, in order; the first decides what is the best
  // What was made of texts: by the token file, or what names several, the text or what named them. See
  // train_tokens.h.
  std::map<std::string, std::string> texts;
  std::shared_ptr<const text::Tokenizer> tokenizer;  // null: bytes, or nobody said which
  int64_t steps = 100, eval_interval = 0, save_interval = 0, keep_every = 0, trace_steps = 10;
  std::optional<double> epochs;  // given instead of `steps`, which follows from it once the data are known
  EpochLength epoch = {};        // of the data, once they are known
  static constexpr int64_t kKept = 2;
  std::optional<int64_t> keep;  // absent: as the ds_config says, or kKept
  double save_minutes = 0;
  uint64_t seed = 42;
  int64_t patience = 0;    // evaluations without a better loss before the training ends; 0: it goes on
  double threshold = 0;    // what is better by no more than this is not
  bool keep_best = false;  // the checkpoint with the smallest validation loss
  // Whether evaluations decide what is kept, or when the training ends.
  bool judges() const { return keep_best || patience > 0; }
  bool pack = false, strict = false, reset_optimizer = false, reset_adapters = false, ngrams = false,
       verbose = false, quiet = false;

  // What the user gave as --data or --eval_data.
  const std::string& named(const std::string& input) const {
    const auto at = texts.find(input);
    return at == texts.end() ? input : at->second;
  }
};

// What --keep and --keep_every say, or nebula of the ds_config in the first one's place.
KeepRule keep_rule(const RunOptions& options, const config::DsConfig& config);

}  // namespace cleave::app
