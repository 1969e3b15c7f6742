// Adapters of a checkpoint (cleave.lora): their facts and their export.
#pragma once
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "checkpoint/weight_reader.h"
#include "config_schema/ds_config.h"
#include "model/transformer.h"

namespace cleave::app {

// Returns the entry "lora" in the facts of a run (app/run/run_facts.h); null for full training.
nlohmann::json facts_of(const config::LoraConfig& lora);
// Reads the adapters in the facts of a checkpoint; no targets without adapters. Throws
// nlohmann::json::exception, and Error(checkpoint) for an invalid rank or scale.
config::LoraConfig lora_in(const nlohmann::json& facts);

// Returns the linear layers with an adapter in a checkpoint, by their weight names ("master"), that
// have none in a run with `lora` and this model prefix (model::Model::prefix).
std::vector<std::string> dropped_adapters(const std::vector<std::string>& weights,
                                          const config::LoraConfig& lora, const std::string& prefix);

// Weights of a checkpoint with merged adapters: W + scale B A.
class MergedWeights {
 public:
  // The reader must outlive this. Error(checkpoint) if the matrices of an adapter do not match
  // their weight or each other.
  MergedWeights(const checkpoint::CheckpointReader& reader, double scale);
  // Reads as CheckpointReader::read; the adapter of a weight is read whole.
  void read(const checkpoint::Record& record) const;

 private:
  std::vector<float> whole(const std::string& tensor) const;

  const checkpoint::CheckpointReader& reader_;
  double scale_;
};

// Returns the peft names of the adapters, in order. Error(checkpoint) without adapters.
checkpoint::WeightNames adapter_names(const checkpoint::CheckpointReader& reader,
                                      const checkpoint::WeightNames& weights);
// Returns adapter_config.json for peft; `base` is the name or folder of the base model.
nlohmann::json adapter_config(const config::LoraConfig& lora, const model::ModelConfig& model,
                              const std::string& base);

}  // namespace cleave::app
