#include "runtime/twin_model.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/json.h"
#include "model/config_json.h"
#include "model/family.h"
#include "runtime/weight_names.h"

namespace cleave::runtime {
namespace {

constexpr const char* kInstead =
    "hand over the model as transformers makes it, or remove cleave.native, and the module runs in torch";

model::ModelConfig model_of(const std::string& name, const std::string& config) {
  require(config != "{}", Exit::usage,
          "cleave.native: the module is a {} (expected a transformers causal language model such as "
          "GPT2LMHeadModel); remove cleave.native to run the module in torch",
          name);
  return model::read_config_json(config, "cleave.native: the config of " + name);
}

}  // namespace

TwinModel::TwinModel(const config::DsConfig& base, const std::string& its_name, const char* its_config,
                     const std::vector<UnitSpec>& its_units)
    : name(its_name), model(model_of(its_name, its_config)), config(base) {
  const model::Family& family = *model.family;
  require(name == family.architecture, Exit::usage,
          "cleave.native: the module is a {} with a config of the family {} (expected a {}): {}", name,
          family.type, family.architecture, kInstead);
  require(config.pipeline.stages == 1, Exit::usage,
          "cleave.native: pipeline.stages is {}, but a script provides micro-batches one by one; set 1, or "
          "use cleave train",
          config.pipeline.stages);
  require(config.lora.targets.empty(), Exit::usage,
          "cleave.native: cleave.lora attaches adapters that the module does not have; train with cleave "
          "train, or remove the section");
  length = config.sequence_length > 0 ? config.sequence_length : model.positions;
  require(length <= model.positions, Exit::usage, "cleave.sequence_length is {}, and {} has {} positions",
          length, name, model.positions);

  for (const checkpoint::WeightName& w : weight_names(model).tensors)
    parameters[w.file_name] = {w.tensor, w.shape, w.transposed};
  std::vector<std::string> decays, missing;
  std::map<std::string, Parameter> left = parameters;
  for (const UnitSpec& unit : its_units) {
    std::vector<std::string>& names = units.emplace_back();
    for (const ParamSpec& p : unit.params) {
      names.push_back(p.name);
      require(unit.group == 0, Exit::usage,
              "cleave.native: {} is in a parameter group with its own rates; use equal groups except for "
              "weight_decay, which can be 0 in some, or remove cleave.native",
              p.name);
      const auto at = left.find(p.name);
      require(at != left.end(), Exit::usage,
              "cleave.native: the module has a parameter {} that a {} does not have; {}", p.name,
              family.architecture, kInstead);
      const std::vector<int64_t> shape = at->second.its_shape();
      require(shape == p.shape, Exit::usage,
              "cleave.native: {} has the shape [{}] in the module (expected [{}] from its config)", p.name,
              fmt::join(p.shape, ", "), fmt::join(shape, ", "));
      if (unit.frozen) config.freeze.push_back(at->second.name);
      if (p.decay) decays.push_back(at->second.name);
      left.erase(at);
    }
  }
  require(left.empty(), Exit::usage, "cleave.native: the module has no parameter {}, which a {} has; {}",
          left.empty() ? "" : left.begin()->first, family.architecture, kInstead);
  // Use the decay of the script's groups, unless the configuration sets it.
  const config::DsConfig defaults;
  if (config.weight_decay_on == defaults.weight_decay_on) config.weight_decay_on = decays;
}

std::unique_ptr<Engine> TwinModel::engine(comm::Communicator& world, const EngineOptions& options) const {
  return std::make_unique<Engine>(
      config,
      [this](const model::Axes& axes) {
        return model::make_model(model, model_dtype(config), length, name, axes);
      },
      world, options);
}

const TwinModel::Parameter& TwinModel::known(const std::string& its_name) const {
  const auto at = parameters.find(its_name);
  require(at != parameters.end(), Exit::usage, "{}: has no parameter {}", name, its_name);
  return at->second;
}

SavedTraining TwinModel::opened(const std::string& folder, const std::string& tag) const {
  SavedTraining saved(folder, tag);
  saved.as_layers_of(model);
  return saved;
}

std::string TwinModel::kept(const std::string& client) const {
  nlohmann::json all = parse_json(client, "the client state", Exit::usage);
  all.update({{"model", name},
              {"config", nlohmann::json::parse(model::to_config_json(model))},
              {"vocab", model.vocab},
              {"seq_len", length},
              {"tokenizer", "ids"}});
  return all.dump();
}

}  // namespace cleave::runtime
