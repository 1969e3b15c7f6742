#pragma once
#include "app/commands.h"
#include "app/options.h"

namespace cleave {

struct TrainOptions {
  ModelOptions model;
  RankOptions ranks;
  AutoValues values;
  std::string config, data, eval_data, output, export_to, resume = "auto", metrics, trace;
  int64_t steps = 100, eval_interval = 0, save_interval = 0, keep = 2, keep_every = 0, trace_steps = 10;
  double save_minutes = 0;
  uint64_t seed = 42;
  bool pack = false, strict = false, reset_optimizer = false, ngrams = false, verbose = false, quiet = false;
};

// False where help was asked for and given. Error(usage) as parse() and for options that lack another one.
bool parse_options(TrainOptions& options, const Arguments& arguments);

}  // namespace cleave
