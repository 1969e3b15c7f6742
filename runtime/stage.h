// The layers that a rank holds, with everything that micro-batches in flight need: parameters from the store,
// activations from frames. It is the one place where layers and ZeRO meet; it knows no communicator.
#pragma once
#include <deque>
#include <vector>

#include "model/layer.h"
#include "runtime/recompute.h"
#include "zero/parameter_store.h"

namespace cleave {

// One micro-batch on this rank, in host memory.
struct Batch {
  Tensor input;    // as Model::input, in fp32 where the model's type is a float; int32 tokens otherwise
  Tensor targets;  // [rows] int32; -100 is ignored
  int64_t valid_targets = 0;  // how many are not -100
  Position position = {};
};

// What of a model a rank holds, and how much of it is in flight at once.
struct StageShape {
  std::vector<Range> chunks;    // layers of each, contiguous, in the model's order
  bool first = true;            // the first chunk begins the model
  bool last = true;             // the last chunk ends it: the head follows
  int frames = 1;               // micro-batches, of each chunk, in flight
  int batches = 1;              // micro-batches whose targets wait
  bool split_backward = false;  // the parts input and weight are asked for apart
  Recompute recompute = {};
  int waiting_weights = 0;  // split: micro-batches, of each chunk, that only miss the weights' part
};

// One visit of a micro-batch to a chunk.
struct Turn {
  int micro = 0, chunk = 0;
  bool fused = false;  // its whole backward follows its forward at once: parameters are gathered once
  bool last = false;   // the last turn of this step that writes this chunk's gradients in this way
};

class Stage {
 public:
  // Adds the local layers' units to the store with plan_of(unit), and the passes. `samples` is the
  // micro-batch size. The model must outlive the stage.
  Stage(const Model& model, StageShape shape, ParameterStore& store, int64_t samples,
        const std::function<ZeroPlan(const UnitSpec&)>& plan_of);

  // After the store's commit: allocates activations, sized by a dry run of every layer.
  void allocate(Memory& memory);

  const StageShape& shape() const { return shape_; }

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
  // [rows, classes] fp32.
  void head(int micro, Tensor loss_sum, Tensor logits, Stream& stream);
  void close(int micro, int chunk, Stream& stream);  // frees the frame; backwards do it themselves

 private:
  // The memory of one micro-batch in one chunk.
  struct Frame {
    Buffer memory;
    Arena keep;
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
  Arena& until_backward(Frame& frame);
  void backward_layer(Frame& frame, int l, const Params& params, Grads& grads, const Position& position,
                      BackwardPart part, Stream& stream);
  void run_head(Frame& frame, const Params& params, Grads& grads, float scale, Tensor loss_sum,
                Stream& stream);
  Tensor gradient(Frame& frame, int l);
  void measure();
  void measure(int chunk, Stream& discard);
  int64_t rows() const { return samples_ * model_.rows_per_sample; }
  Tensor targets(int micro) const;
  const Layer& layer(int chunk, int l) const {
    return *model_.layers[size_t(shape_.chunks[size_t(chunk)].begin + l)];
  }
  const TensorSpec& boundary(int chunk, int l) const {
    return boundaries_[size_t(shape_.chunks[size_t(chunk)].begin + l)];
  }
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
  Buffer scratch_, group_, gradients_[2], targets_, losses_;
  std::vector<Frame> frames_;
  std::deque<int> free_;         // frames, the longest free first
  std::vector<Buffer> waiting_;  // with recomputation: what frames keep between the parts of their backward
  std::vector<int> free_waiting_;
  std::vector<Position> positions_;
  Arena scratch_arena_;
  Arena group_arena_;  // with recomputation: what the layers of one group make
  Event loaded_;
  int64_t keep_bytes_ = 0, waiting_bytes_ = 0;  // of a frame; of one of waiting_
  int64_t gradient_bytes_ = 0;                  // of the largest layer boundary
  int visit_ = 0;                               // in the store's current pass
};

}  // namespace cleave
