// The local layers with everything a micro-batch needs: their parameters from the store, their activations
// from an arena. It is the one place where layers and ZeRO meet.
#pragma once
#include <vector>

#include "model/layer.h"
#include "zero/parameter_store.h"

namespace cleave {

// One micro-batch on this rank, in host memory.
struct Batch {
  Tensor input;    // as Model::input, in fp32 where the model's type is a float; int32 tokens otherwise
  Tensor targets;  // [rows] int32; -100 is ignored
  int64_t valid_targets = 0;  // how many are not -100
  Position position = {};
};

class Stage {
 public:
  // Adds the layers' units to the store with plan_of(unit), and the passes. `samples` is the micro-batch
  // size. The model must outlive the stage.
  Stage(const Model& model, ParameterStore& store, int64_t samples,
        const std::function<ZeroPlan(const UnitSpec&)>& plan_of);

  // After the store's commit: allocates activations, sized by a dry run of every layer.
  void allocate(Memory& memory);

  // Forward and backward of one micro-batch: adds its gradients, scaled by `scale` for each row, in the
  // store; loss_sum (fp64, one element) = sum over rows of the unscaled losses.
  void train(const Batch& batch, float scale, bool last_micro, Tensor loss_sum, Stream& stream);
  // Blocks the host until the last batch given was copied, so that its memory may be filled again.
  void wait_until_loaded() { loaded_.wait(); }
  // Forward only.
  void evaluate(const Batch& batch, Tensor loss_sum, Stream& stream);
  // Forward only; logits of every row, [rows, classes] fp32.
  void predict(const Batch& batch, Tensor logits, Stream& stream);

 private:
  // The memory of one micro-batch in flight.
  struct Frame {
    Arena keep;
    std::vector<Saved> saved;
    std::vector<Tensor> inputs;  // of every layer, then of the head
    Tensor targets;
  };
  using Params = std::vector<Tensor>;
  using Grads = std::vector<ParamGradient>;

  void load(const Batch& batch, Stream& stream);
  void forward_layer(int layer, const Params& params, const Position& position, bool train, Stream& stream);
  void backward_layer(int layer, const Params& params, Grads& grads, const Position& position,
                      Stream& stream);
  void run_head(const Params& params, Grads& grads, float scale, Tensor loss_sum, Stream& stream);
  void run_forward(const Batch& batch, bool train, Stream& stream);
  void measure();
  int layers() const { return int(model_.layers.size()); }

  const Model& model_;
  ParameterStore& store_;
  int64_t samples_;
  int train_pass_ = 0, eval_pass_ = 0;
  Buffer keep_, scratch_, gradients_[2], input_, targets_, losses_;
  Frame frame_;
  Arena scratch_arena_;
  Event loaded_;
  int64_t gradient_bytes_ = 0;  // of the largest layer boundary
};

}  // namespace cleave
