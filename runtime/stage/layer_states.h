// What the layers of a stage remember from step to step: its memory, its step, and its form in checkpoints.
#pragma once
#include "checkpoint/checkpoint.h"
#include "runtime/stage/stage_layers.h"

namespace cleave::runtime {

class LayerStates {
 public:
  // Collects the states of the layers that the stage holds. Error(usage) where two states of the model have
  // one name.
  explicit LayerStates(const StageLayers& layers);

  // Lasting parts have what they begin with, in the order of `stream`. Without training nothing is seen.
  void allocate(Memory& memory, Stream& stream);

  // The states of a layer of the model, in the order of its states(). sees: with the seen parts, else they
  // are undefined.
  std::span<const model::StateViews> of(int layer, bool sees) const {
    const OfLayer& l = layers_[size_t(layer)];
    return sees ? l.seeing : l.lasting;
  }

  void begin_step(Stream& compute);  // nothing was seen
  // What was seen is reduced over each group of ranks that see different rows, and where a state asks for it
  // over those of the tensor axis, that see different columns; every layer joins it with what lasts.
  // Collective.
  void join(std::span<comm::Communicator* const> of_rows, comm::Communicator& of_columns, Stream& compute,
            Stream& comm);

  // Those that are saved, whole, by their names.
  std::vector<checkpoint::Record> records(Stream& compute) const;
  // The lasting part of this name; undefined where no layer here has it.
  Tensor find(const std::string& name) const;

 private:
  struct OfLayer {
    const model::Layer* layer = nullptr;  // none: another stage holds it
    std::vector<model::LayerState> specs;
    std::vector<model::StateViews> lasting, seeing;
  };

  const bool trains_;
  std::vector<OfLayer> layers_;  // of the model
  std::vector<Buffer> memory_;
};

}  // namespace cleave::runtime
