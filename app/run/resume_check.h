// The loss of the step that comes next, before it is trained: a checkpoint keeps it, and a run that goes on
// computes it again, so that another text, other weights or another model do not pass for the same training.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "data/batch_loader.h"
#include "launcher/job.h"
#include "runtime/engine.h"

namespace cleave::app {

struct FirstLoss {
  double loss = 0;       // mean over the targets of the step's whole batch, without dropout
  uint64_t samples = 0;  // the sum of its samples' checksums, which does not depend on who reads which
  int64_t batch = 0;     // samples
  std::string type;      // that the model computed in: "fp32", "tf32", "fp16", "bf16", or "int8": gathered so

  // The loss of the engine's next step; nothing where a rank cannot read its data, and where the loss is not
  // finite. Collective; changes nothing of the training.
  static std::optional<FirstLoss> of_next_step(runtime::Engine& engine, data::TokenBatches& batches,
                                               launcher::Job& job);
  // What the facts of a run (app/run/run_facts.h) have under "first_loss"; nothing where they do not have it.
  static std::optional<FirstLoss> in(const nlohmann::json& facts);
  nlohmann::json json() const;
};

// The most by which two losses of one state may differ, where `magnitude` is that of one of them: many times
// what another layout, another device or another order of sums leaves in the coarser of two types.
double allowed_difference(const std::string& type, const std::string& other, double magnitude);

// Why what was saved before a step says nothing about this run's: what of the facts, or of the batch, is
// meant to be another. Empty where the two losses can be compared.
std::string not_comparable(const nlohmann::json& saved, const nlohmann::json& now, int64_t batch);

// Empty, or what is wrong: with the data, the configuration or the weights.
std::string difference(const FirstLoss& saved, const FirstLoss& now, const nlohmann::json& saved_facts,
                       const nlohmann::json& facts);

}  // namespace cleave::app
