// A model of a published family that a program in another language has as well: what there is called how,
// what of it is trained, and the engine that computes it in its place.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "config_schema/ds_config.h"
#include "model/transformer.h"
#include "runtime/engine.h"
#include "runtime/saved_training.h"

namespace cleave::runtime {

struct TwinModel {
  // its_name: of the class; its_config: transformers' config.json; its_units: what the program has of it, by
  // which names and in which shapes, what is frozen and what decays. Error(usage) where that is not what the
  // family has, or is trained as no engine of layers does it.
  TwinModel(const config::DsConfig& base, const std::string& its_name, const char* its_config,
            const std::vector<UnitSpec>& its_units);

  std::unique_ptr<Engine> engine(comm::Communicator& world, const EngineOptions& options) const;

  struct Parameter {
    std::string name;  // in the engine
    std::vector<int64_t> shape;
    bool input_first = false;  // the program's matrix lies the other way round
    std::vector<int64_t> its_shape() const {
      return input_first ? std::vector(shape.rbegin(), shape.rend()) : shape;
    }
  };
  const Parameter& known(const std::string& its_name) const;

  // A training that was saved, under the engine's names.
  SavedTraining opened(const std::string& folder, const std::string& tag) const;
  // What its checkpoints keep beside what the program stores (JSON), so that cleave train goes on from them.
  std::string kept(const std::string& client) const;

  std::string name;
  model::ModelConfig model;
  config::DsConfig config;                      // with what of the model is trained and decays
  int64_t length = 0;                           // of a sample
  std::map<std::string, Parameter> parameters;  // by the program's names
  std::vector<std::vector<std::string>> units;  // the program's, their names
};

}  // namespace cleave::runtime
