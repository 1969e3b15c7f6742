// State that the layers of a stage keep from step to step: memory, update per step, and checkpoint records.
#pragma once
#include "checkpoint/checkpoint.h"
#include "runtime/stage/stage_layers.h"

namespace cleave::runtime {

class LayerStates {
 public:
  // Collects the states of the stage's layers. Throws Error(usage) for duplicate state names in the model.
  explicit LayerStates(const StageLayers& layers);

  // Allocates the states and initializes the lasting parts in the order of `stream`. Inference has no seen
  // parts.
  void allocate(Memory& memory, Stream& stream);

  // Returns the states of a layer of the model, in the order of its states(). sees: includes the seen parts,
  // which are otherwise undefined.
  std::span<const model::StateViews> of(int layer, bool sees) const {
    const OfLayer& l = layers_[size_t(layer)];
    return sees ? l.seeing : l.lasting;
  }

  void begin_step(Stream& compute);  // resets the seen parts
  // Reduces the seen parts over each group of ranks with different rows, and on request of a state also over
  // the ranks of the tensor axis, which have different columns; then every layer updates its lasting part.
  // Collective.
  void join(std::span<comm::Communicator* const> of_rows, comm::Communicator& of_columns, Stream& compute,
            Stream& comm);

  // Returns the saved states, whole, by name.
  std::vector<checkpoint::Record> records(Stream& compute) const;
  // Returns the lasting part with this name; undefined if no local layer has it.
  Tensor find(const std::string& name) const;

 private:
  struct OfLayer {
    const model::Layer* layer = nullptr;  // null: on another stage
    std::vector<model::LayerState> specs;
    std::vector<model::StateViews> lasting, seeing;
  };

  const bool trains_;
  std::vector<OfLayer> layers_;  // by layer of the model
  std::vector<Buffer> memory_;
};

}  // namespace cleave::runtime
