// Check that a resumed run continues the same training. A checkpoint contains the loss of the next
// step, and the resumed run computes it again before training, so that another text, other weights
// or another model are detected.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "data/batch_loader.h"
#include "launcher/job.h"
#include "runtime/engine.h"

namespace cleave::app {

struct FirstLoss {
  double loss = 0;       // mean over the targets of the step's batch, without dropout
  uint64_t samples = 0;  // sum of the samples' checksums; independent of their distribution over ranks
  int64_t batch = 0;     // samples
  std::string type;      // compute type: "fp32", "tf32", "fp16", "bf16", or "int8" for gathered weights

  // Returns the loss of the engine's next step; empty if a rank cannot read its data or the loss is
  // not finite. Collective; does not change the training.
  static std::optional<FirstLoss> of_next_step(runtime::Engine& engine, data::TokenBatches& batches,
                                               launcher::Job& job);
  // Reads the entry "first_loss" in the facts of a run (app/run/run_facts.h); empty without one.
  static std::optional<FirstLoss> in(const nlohmann::json& facts);
  nlohmann::json json() const;
};

// Returns the largest allowed difference between two losses of one state, with `magnitude` of one
// of them: many times the effect of another layout, device or summation order in the coarser type.
double allowed_difference(const std::string& type, const std::string& other, double magnitude);

// Returns the reason why a saved loss cannot be compared with this run: a fact or the batch size
// changed on purpose. Empty if it can.
std::string not_comparable(const nlohmann::json& saved, const nlohmann::json& now, int64_t batch);

// Returns an empty string, or the difference: data, configuration or weights.
std::string difference(const FirstLoss& saved, const FirstLoss& now, const nlohmann::json& saved_facts,
                       const nlohmann::json& facts);

}  // namespace cleave::app
