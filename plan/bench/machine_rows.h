// Benchmark rows of data transfers and of a whole step.
#pragma once
#include <filesystem>
#include <vector>

#include "config_schema/ds_config.h"
#include "model/transformer.h"
#include "plan/bench/rounds.h"

namespace cleave::bench {

// Collectives of `ranks` processes on this machine through shared memory. Unit: bytes per second that each
// rank sends, independent of the number of ranks: 2 (n - 1) / n of the tensor in an all-reduce, half of that
// in the others. The limit is the copy rate of every rank while all copy. Forks the processes here, so no
// team helper may have been started before; they sleep between visits and end with the last of these
// subjects. A visit throws Error(rank_lost) if one of them fails.
std::vector<Subject> comm_rows(int ranks);

// An unnamed file of 1 GiB in the folder, created here, and written and read bypassing the page cache as for
// offloaded state. Throws as offload::DiskFile does.
std::vector<Subject> disk_rows(const std::filesystem::path& folder);

// Training step of GPT-2 124M over 1,024 tokens on the CPU: one process, all cores.
struct StepJob {
  config::DsConfig config;
  model::ModelConfig model;
  int64_t seq = 0;
};
StepJob step_job(DType type);
std::string step_row_name(DType type);

// Measures that step with an engine that lives for the visit. The limit is the model's arithmetic, without
// recomputation, at the rate of multiply-adds on registers.
Subject step_row(DType type);

}  // namespace cleave::bench
