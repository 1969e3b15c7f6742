// What a training run is apart from its tensors, and its form in a checkpoint's manifest.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "optim/loss_scaler.h"

namespace cleave::runtime {

struct TrainingState {
  int64_t step = 0;     // steps taken, skipped ones included
  int64_t applied = 0;  // updates really applied: the learning-rate schedule's position
  int64_t skipped = 0;
  int64_t optimizer_begin = 0;  // of the applied updates, those before the optimizer's state began anew
};

struct Restored {
  TrainingState at;
  std::optional<optim::LossScaler::State> scaler;  // none where the loss had no scale
  uint64_t seed = 0;
  std::string client;
  bool imported = false;  // from another program's files, which have no seed
};

std::string to_json(const TrainingState& at, const optim::LossScaler::State& scaler, uint64_t seed,
                    const std::string& client);
// The state of an imported checkpoint.
std::string to_json(const TrainingState& at, const std::optional<optim::LossScaler::State>& scaler,
                    const std::string& client);
// Throws Error(checkpoint) naming `where`.
Restored from_json(const std::string& text, const std::string& where);

}  // namespace cleave::runtime
