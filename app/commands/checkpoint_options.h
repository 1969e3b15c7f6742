// Common options of the commands that read one checkpoint: inspect, verify and digest.
#pragma once
#include <CLI/CLI.hpp>
#include <string>

#include "checkpoint/checkpoint.h"

namespace cleave::app {

struct CheckpointOptions {
  std::string dir, tag = "latest";
  int threads = 0;
  bool quiet = false;
};

void add_options(CLI::App& app, CheckpointOptions& options);
void add_threads(CLI::App& app, CheckpointOptions& options);

// Opens a folder of checkpoints, or one checkpoint.
checkpoint::CheckpointReader open(const CheckpointOptions& options);
int threads_of(const CheckpointOptions& options);

}  // namespace cleave::app
