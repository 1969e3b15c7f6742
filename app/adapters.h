// Adapters of a checkpoint (cleave.lora): what its facts say of them, and what an export makes of them.
#pragma once
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "checkpoint/weight_reader.h"
#include "config_schema/ds_config.h"
#include "model/transformer.h"

namespace cleave::app {

// What the facts of a run (app/run/run_facts.h) have under "lora": null where everything is trained.
nlohmann::json facts_of(const config::LoraConfig& lora);
// The adapters that a checkpoint's facts name, without targets where they say none. Throws
// nlohmann::json::exception, and Error(checkpoint) for a rank or a scale that no adapter has.
config::LoraConfig lora_in(const nlohmann::json& facts);

// The linear layers that have an adapter in a checkpoint, by the names of its weights ("master"), and none in
// a run with `lora`, whose model has a prefix (model::Model::prefix).
std::vector<std::string> dropped_adapters(const std::vector<std::string>& weights,
                                          const config::LoraConfig& lora, const std::string& prefix);

// Weights of a checkpoint with its adapters added to them: W + scale B A.
class MergedWeights {
 public:
  // The reader outlives it. Error(checkpoint) if the matrices of an adapter do not fit its weight or each
  // other.
  MergedWeights(const checkpoint::CheckpointReader& reader, double scale);
  // Reads as CheckpointReader::read does; the adapter of a weight that has one is read whole.
  void read(const checkpoint::Record& record) const;

 private:
  std::vector<float> whole(const std::string& tensor) const;

  const checkpoint::CheckpointReader& reader_;
  double scale_;
};

// What peft calls the adapters beside these weights, in their order. Error(checkpoint) where there are none.
checkpoint::WeightNames adapter_names(const checkpoint::CheckpointReader& reader,
                                      const checkpoint::WeightNames& weights);
// adapter_config.json for peft; `base` is the model that the adapters are beside, by name or folder.
nlohmann::json adapter_config(const config::LoraConfig& lora, const model::ModelConfig& model,
                              const std::string& base);

}  // namespace cleave::app
