// What moves data or is a whole step, as rows to be measured.
#pragma once
#include <filesystem>
#include <vector>

#include "config_schema/ds_config.h"
#include "model/transformer.h"
#include "plan/bench/rounds.h"

namespace cleave::bench {

// Collectives of `ranks` processes of this machine through shared memory; bytes a second as each rank sends
// them, which does not depend on their number: 2 (n - 1) / n of the tensor's in an all-reduce, half of that
// in the others. The limit is what every rank copies while all do. The processes start here, by fork, so no
// helper of a team may have been started before; between visits they sleep, and they end with the last of
// these subjects. A visit throws Error(rank_lost) where one of them fails.
std::vector<Subject> comm_rows(int ranks);

// A file without a name in the folder, of 1 GiB, made and written here, and written and read past the page
// cache as offloaded state is. Errors as offload::DiskFile.
std::vector<Subject> disk_rows(const std::filesystem::path& folder);

// A training step of GPT-2 124M over 1,024 tokens on the CPU: one process, all cores.
struct StepJob {
  config::DsConfig config;
  model::ModelConfig model;
  int64_t seq = 0;
};
StepJob step_job(DType type);
std::string step_row_name(DType type);

// That step, of an engine that lives for the visit. The limit is the model's arithmetic, without
// recomputation, at the rate of multiply-adds on registers.
Subject step_row(DType type);

}  // namespace cleave::bench
