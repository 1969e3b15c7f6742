// Layers of a stage in chunks, with the properties that follow from the run settings. Layers and boundaries
// are numbered inside their chunk; index layers(chunk) means the chunk's output, or its head.
#pragma once
#include "runtime/stage/stage_shape.h"

namespace cleave::runtime {

class StageLayers {
 public:
  // For micro-batches of `samples` samples. The model must outlive this object.
  StageLayers(const model::Model& model, StageShape shape, int64_t samples)
      : model_(model), shape_(std::move(shape)), samples_(samples) {
    boundaries_.push_back(model.input(samples));
    for (const auto& l : model.layers) boundaries_.push_back(l->output(boundaries_.back()));
  }

  const model::Model& model() const { return model_; }
  const StageShape& shape() const { return shape_; }
  int64_t samples() const { return samples_; }
  int64_t rows() const { return samples_ * model_.rows_per_sample; }  // targets per micro-batch
  const model::TensorSpec& input() const { return boundaries_[0]; }   // of the model

  int chunks() const { return int(shape_.chunks.size()); }
  int layers(int chunk) const { return int(shape_.chunks[size_t(chunk)].size()); }
  int in_model(int chunk, int l) const { return int(shape_.chunks[size_t(chunk)].begin) + l; }
  const model::Layer& layer(int chunk, int l) const { return *model_.layers[size_t(in_model(chunk, l))]; }
  const model::TensorSpec& boundary(int chunk, int l) const {
    return boundaries_[size_t(in_model(chunk, l))];
  }
  // Returns the boundary for a model input of `rows` rows; 0: whole samples.
  model::TensorSpec boundary(int chunk, int l, int64_t rows) const {
    model::TensorSpec spec = boundary(chunk, l);
    if (rows > 0) spec.shape.dims[0] = spec.shape.dims[0] * rows / boundaries_[0].shape.dims[0];
    return spec;
  }

  bool has_head(int chunk) const { return shape_.last && chunk + 1 == chunks(); }
  // Returns true if the gradient of the layer's input is not needed.
  bool begins_model(int chunk, int l) const { return shape_.first && chunk == 0 && l == 0; }
  bool splits(int chunk, int l) const { return shape_.split_backward && layer(chunk, l).splits_backward(); }
  // Returns true if the layer's input is inside the chunk and is offloaded or partitioned.
  bool moves_input(int chunk, int l) const {
    return l > 0 && shape_.recompute.moves_input_at(l, layers(chunk));
  }
  int groups(int chunk) const { return shape_.recompute.groups(layers(chunk)); }
  // Returns true if the last group's activations may be kept from its forward for a backward that follows
  // directly. False for a split backward with off-device inputs: its weight part would need the group's
  // input.
  bool may_stay() const { return !(shape_.split_backward && shape_.recompute.moves_inputs()); }

 private:
  const model::Model& model_;
  StageShape shape_;
  int64_t samples_;
  std::vector<model::TensorSpec> boundaries_;  // input of every layer of the model, then of the head
};

// Returns the units of a stage, each once, in the order of its layers, then the head's. Throws Error(usage)
// if layers share a unit that is frozen in only some of them.
std::vector<UnitSpec> units_of(const model::Model& model, const StageShape& stage);

}  // namespace cleave::runtime
