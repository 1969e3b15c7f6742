// Maps the model of a program in another language to a published model family: parameter names, training
// settings, and the engine that computes the model in the program's place.
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
  // its_name: class name; its_config: config.json of transformers; its_units: the program's parameters with
  // names, shapes, frozen flags and decay. Throws Error(usage) if they differ from the family, or if no layer
  // engine can train them as given.
  TwinModel(const config::DsConfig& base, const std::string& its_name, const char* its_config,
            const std::vector<UnitSpec>& its_units);

  std::unique_ptr<Engine> engine(comm::Communicator& world, const EngineOptions& options) const;

  struct Parameter {
    std::string name;  // in the engine
    std::vector<int64_t> shape;
    bool input_first = false;  // the program stores the transposed matrix
    std::vector<int64_t> its_shape() const {
      return input_first ? std::vector(shape.rbegin(), shape.rend()) : shape;
    }
  };
  const Parameter& known(const std::string& its_name) const;

  // Opens a saved training under the engine's names.
  SavedTraining opened(const std::string& folder, const std::string& tag) const;
  // Returns the client text of a checkpoint: the program's own (JSON), and data that lets cleave train resume
  // from it.
  std::string kept(const std::string& client) const;

  std::string name;
  model::ModelConfig model;
  config::DsConfig config;                      // with the model's frozen and decayed parameters
  int64_t length = 0;                           // per sample
  std::map<std::string, Parameter> parameters;  // by the program's names
  std::vector<std::vector<std::string>> units;  // names of the program's units
};

}  // namespace cleave::runtime
