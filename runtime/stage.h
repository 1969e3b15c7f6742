// The layers that a rank holds, with everything that micro-batches in flight need: parameters from the store,
// activations from frames. It is the one place where layers and ZeRO meet; it knows no communicator.
#pragma once
#include <deque>
#include <vector>

#include "runtime/away_inputs.h"
#include "runtime/stage_shape.h"
#include "zero/parameter_store.h"

namespace cleave {

class Stage {
 public:
  // Adds the local layers' units to the store with plan_of(unit), and the passes. `samples` is the
  // micro-batch size, `axis` what kept inputs may be partitioned over. The model must outlive the stage.
  Stage(const Model& model, StageShape shape, ParameterStore& store, int64_t samples, const TensorAxis& axis,
        const std::function<ZeroPlan(const UnitSpec&)>& plan_of);

  // After the store's commit: allocates activations, sized by a dry run of every layer, and on a GPU a copy
  // of the model's constants, which arrives in the order of `stream`.
  void allocate(Memory& memory, Stream& stream);
  void show_in(Trace& trace) { trace_ = &trace, away_inputs_.show_in(trace); }

  const StageShape& shape() const { return shape_; }
  int64_t frame_bytes() const { return keep_bytes_; }  // of the activations that one micro-batch keeps

  // Takes what the rank needs of a micro-batch: its position, its input, its targets. Before the first
  // forward.
  void load(int micro, const Batch& batch, Stream& stream);
  // Blocks the host until the last batch given was copied, so that its memory may be filled again.
  void wait_until_loaded() { loaded_.wait(); }

  // A frame for the micro-batch in the chunk; returns where its input goes, written on `writer`. load() does
  // it for the model's first layer.
  Tensor open(int micro, int chunk, Stream& writer);
  void forward(const Turn& turn, bool train, Stream& stream);
  Tensor output(int micro, int chunk);  // of the forward
  // Whoever reads or writes a frame's boundary on another stream leaves an event; the frame is not used again
  // before.
  void hold(int micro, int chunk, const Event& until);

  // Where the gradient of the chunk's output goes before backward, and where that of its input is after it.
  Tensor output_gradient(int micro, int chunk);
  Tensor input_gradient(int micro, int chunk);
  // Adds the micro-batch's gradients to the store. After the last layer the head runs first: losses are
  // scaled by `scale` for each row, and loss_sum (fp64, one element) = the sum over rows of the unscaled
  // losses. With split_backward only what cannot be split is added, and backward_weight does the rest.
  void backward(const Turn& turn, float scale, Tensor loss_sum, Stream& stream);
  void backward_weight(const Turn& turn, Stream& stream);

  // Without training: what follows the last chunk's forward. Either result may be undefined; logits are
  // [rows.size(), the head's columns] fp32, of those rows of the head's whole input.
  void head(int micro, Tensor loss_sum, Tensor logits, Range rows, Stream& stream);
  void close(int micro, int chunk, Stream& stream);  // frees the frame; backwards do it themselves

 private:
  // The memory of one micro-batch in one chunk.
  struct Frame {
    Buffer memory;
    Arena keep;
    Buffer home_memory;
    Arena home;                       // of inputs of groups of layers that are away: all but the chunk's own
    std::vector<Tensor> inputs_home;  // of every group
    int fetched = 0, gathered = 0;    // from this group on they are back, and whole
    std::vector<Saved> saved, for_weight;
    std::vector<Tensor> inputs;     // of every layer of the chunk, then its output
    std::vector<Tensor> gradients;  // of the same, when the backward is split
    int micro = -1, chunk = -1;
    int waiting = -1;  // recomputation and a split backward: which of waiting_ the frame has
    Arena until_weight;
    Event idle, held;
  };
  struct Passes {
    int forward = 0, train = 0, backward = 0, weight = 0;
    std::vector<Stop> fused, apart;  // of a backward in the pass train, and in backward
  };
  // How a layer's forward runs.
  struct Run {
    bool train = true;
    bool again = false;  // before its backward; otherwise for the first time
    bool alive = false;  // for the first time, and what it makes is there until its backward
  };
  using Params = std::vector<Tensor>;
  using Grads = std::vector<ParamGradient>;

  void add_passes(const std::function<ZeroPlan(const UnitSpec&)>& plan_of);
  Frame& frame(int micro, int chunk);
  void start(Frame& frame, int chunk);
  void forward_layer(Frame& frame, int l, const Params& params, const Position& position, Run run,
                     Stream& stream);
  Tensor take_output(Frame& frame, int l, Run run);
  // Before a stop of the backward: its group's input is on the device, and the next one's is on its way.
  void bring_inputs(Frame& frame, int l, Stream& stream);
  Arena& until_backward(Frame& frame);
  void backward_layer(Frame& frame, int l, const Params& params, Grads& grads, const Position& position,
                      BackwardPart part, Stream& stream);
  void run_head(Frame& frame, const Params& params, Grads& grads, float scale, Tensor loss_sum,
                Stream& stream);
  Tensor gradient(Frame& frame, int l);
  Tensor passing(int chunk, int l) const;
  void place_constants(Memory& memory, Stream& stream);
  void measure();
  void measure(int chunk, Stream& discard);
  void measure_backward(Frame& dry, int chunk, Stream& discard);
  int64_t rows() const { return samples_ * model_.rows_per_sample; }
  // to = what this rank computes of every sample of a micro-batch.
  void take_part(Tensor to, Tensor whole, Stream& stream) const;
  Tensor targets(int micro) const;
  // What layer l of the frame's chunk does, for the trace where there is one; the head is behind the last.
  TraceEvent shown(const char* what, const Frame& frame, int l) const;
  const Layer& layer(int chunk, int l) const {
    return *model_.layers[size_t(shape_.chunks[size_t(chunk)].begin + l)];
  }
  const TensorSpec& boundary(int chunk, int l) const {
    return boundaries_[size_t(shape_.chunks[size_t(chunk)].begin + l)];
  }
  // Whether the input of the layer leaves the device or is partitioned: one inside the chunk.
  bool away(int chunk, int l) const { return l > 0 && shape_.recompute.away_at(l, layers(chunk)); }
  int groups(int chunk) const { return shape_.recompute.groups(layers(chunk)); }
  // A last group that outlives its forward would need its input until the weights' part.
  bool may_stay() const { return !(shape_.split_backward && shape_.recompute.away()); }
  int layers(int chunk) const { return int(shape_.chunks[size_t(chunk)].size()); }
  bool has_head(int chunk) const { return shape_.last && chunk + 1 == int(shape_.chunks.size()); }
  bool splits(int chunk, int l) const { return shape_.split_backward && layer(chunk, l).splits_backward(); }

  const Model& model_;
  StageShape shape_;
  ParameterStore& store_;
  int64_t samples_;
  std::vector<TensorSpec> boundaries_;  // input of every layer of the model, then of the head
  std::vector<Passes> passes_;          // by chunk
  int eval_pass_ = 0;                   // of the last chunk, with the head
  Buffer passing_[2];  // in turn: gradients of layer boundaries; without training, the boundaries themselves
  Buffer scratch_, group_, targets_, losses_;
  std::vector<Buffer> constant_copies_;
  std::vector<Tensor> constants_;  // where the layers compute
  std::vector<Frame> frames_;
  std::deque<int> free_;         // frames, the longest free first
  std::vector<Buffer> waiting_;  // with recomputation: what frames keep between the parts of their backward
  std::vector<int> free_waiting_;
  std::vector<Position> positions_;
  Arena scratch_arena_;
  AwayInputs away_inputs_;
  Arena group_arena_;  // with recomputation: what the layers of one group make
  Event loaded_;
  int64_t keep_bytes_ = 0, waiting_bytes_ = 0;  // of a frame; of one of waiting_
  int64_t home_bytes_ = 0, block_bytes_ = 0;    // of a frame; of the largest input that is away
  int64_t passing_bytes_ = 0;                   // of one of passing_
  int visit_ = 0;                               // in the store's current pass
  Trace* trace_ = nullptr;
};

}  // namespace cleave
