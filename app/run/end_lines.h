// The last lines of a training run.
#pragma once
#include <cstdint>
#include <vector>

#include "app/run/best.h"
#include "app/run/run_options.h"
#include "config_schema/summary.h"

namespace cleave::app {

struct EndFacts {
  int64_t step = 0;   // of the whole training
  int64_t steps = 0;  // of this run; 0: without loss, time and throughput
  double loss = 0;    // of the last step
  int64_t tokens = 0;
  double step_seconds = 0, seconds = 0;  // in steps, and since the start
  bool stopped = false;                  // on request
  bool has_tokenizer = false;            // that `cleave generate` finds
};

// Returns loss, best evaluation, time, throughput, output and the next commands.
std::vector<config::NamedValue> end_lines(const EndFacts& facts, const Best& best, const RunOptions& options);

}  // namespace cleave::app
