// Position of a training run, apart from its tensors, and its form in a checkpoint's manifest.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "optim/loss_scaler.h"

namespace cleave::runtime {

struct TrainingState {
  int64_t step = 0;     // steps taken, including skipped ones
  int64_t applied = 0;  // applied updates
  int64_t skipped = 0;
  // Applied updates at which the optimizer state began, and the learning-rate schedule. Negative if the state
  // has had more updates than the training.
  int64_t optimizer_begin = 0, schedule_begin = 0;
  // Updates since then that a parameter did not get, because it was frozen meanwhile; 0 if not in the table.
  std::map<std::string, int64_t> missed = {};
  std::vector<double> losses = {};  // of the last updates, oldest first, if cleave.loss_spike needs them
};

struct Restored {
  TrainingState at;
  std::optional<optim::LossScaler::State> scaler;  // empty without a loss scale
  uint64_t seed = 0;
  std::map<std::string, std::string> settings;  // config::training_values; empty if an older version saved
  std::string client;
  bool imported = false;  // from another program's files, without a seed
};

std::string to_json(const TrainingState& at, const optim::LossScaler::State& scaler, uint64_t seed,
                    const std::string& client, const std::map<std::string, std::string>& settings = {});
// Returns the JSON of an imported checkpoint.
std::string to_json(const TrainingState& at, const std::optional<optim::LossScaler::State>& scaler,
                    const std::string& client);
// Throws Error(checkpoint) with `where` as the object.
Restored from_json(const std::string& text, const std::string& where);

}  // namespace cleave::runtime
