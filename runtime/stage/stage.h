// The layers that a rank holds, with everything that micro-batches in flight need: parameters from the store,
// activations from frames, in the order of its passes. It is the one place where layers and ZeRO meet; it
// knows no communicator.
#pragma once
#include "runtime/stage/away_inputs.h"
#include "runtime/stage/frames.h"
#include "runtime/stage/layer_states.h"
#include "runtime/stage/passes.h"

namespace cleave::runtime {

class Stage {
 public:
  // Adds its passes to the visits, whose store has the units of the local layers (units_of). `samples` is the
  // micro-batch size, `axis` what kept inputs may be partitioned over. The model must outlive the stage.
  Stage(const model::Model& model, StageShape shape, zero::PlannedVisits& visits, int64_t samples,
        const tensor_parallel::TensorAxis& axis);

  // After the commit of the visits: allocates activations, sized by a dry run of every layer, and on a GPU a
  // copy of the model's constants, which arrives in the order of `stream`.
  void allocate(Memory& memory, Stream& stream);
  void show_in(Trace& trace) { trace_ = &trace, away_inputs_.show_in(trace); }

  // Where layers add their side losses, fp64: a row for each layer of the model that has one, a column for
  // each micro-batch; before allocate(). Whoever reads them clears them before.
  void put_side_losses(const Tensor& sums) { side_losses_ = sums; }
  LayerStates& states() { return states_; }

  const StageShape& shape() const { return layers_.shape(); }
  // The bytes of activations that one micro-batch keeps in a chunk.
  int64_t frame_bytes() const { return frames_.bytes().keep; }
  // The most bytes of a boundary that other stages make for this one's chunks, and of one that these make for
  // others; 0: there is none.
  int64_t bytes_from_others() const;
  int64_t bytes_to_others() const;

  // Takes what the rank needs of a micro-batch: its position, its input, its targets. Before the first
  // forward.
  void load(int micro, const Batch& batch, Stream& stream);
  // Blocks the host until the last batch given was copied, so that its memory may be filled again.
  void wait_until_loaded() { loaded_.wait(); }

  // Makes this pass over texts that grow (StageShape::texts) the only micro-batch from here on; null: no
  // longer. It has at most text_rows() rows, a multiple of what the tensor axis cuts.
  void begin_texts(const TextPass* pass, Stream& stream);
  int64_t text_rows() const { return layers_.input().shape.numel(); }

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
  // scaled by `scale` for each row, as those of layers are, and loss_sum (fp64, one element) = the sum over
  // rows of the unscaled losses. A scale of 0 is that of a micro-batch without targets, of which nothing is
  // learned. With split_backward only what cannot be split is added, and backward_weight
  // does the rest.
  void backward(const Turn& turn, float scale, Tensor loss_sum, Stream& stream);
  void backward_weight(const Turn& turn, float scale, Stream& stream);

  // Computes what follows the last chunk's forward where nothing is trained. Any result may be undefined;
  // logits are [rows.size(), the head's columns] fp32, of those rows of the head's whole input.
  void head(int micro, const HeadSums& sums, Tensor logits, Range rows, Stream& stream);
  void close(int micro, int chunk, Stream& stream);  // frees the frame; backwards do it themselves

 private:
  // How a layer's forward runs.
  struct Run {
    bool train = true;
    bool again = false;  // before its backward; otherwise for the first time
    bool alive = false;  // for the first time, and what it makes is there until its backward
    // Whether a layer notes in its state what it sees.
    bool sees(const StageShape& shape) const { return shape.trains && train && !again; }
  };
  struct Backward {
    const Position& position;
    model::BackwardPart part = model::BackwardPart::both;
    float scale = 1;
  };
  using Params = std::vector<Tensor>;
  using Grads = std::vector<model::ParamGradient>;

  const model::Model& model() const { return layers_.model(); }
  void forward_layer(Frame& frame, int l, const Params& params, const Position& position, Run run,
                     Stream& stream);
  Tensor take_output(Frame& frame, int l, Run run);
  Tensor side_loss(const Frame& frame, int l) const;
  // Before a stop of the backward: its group's input is on the device, and the next one's is on its way.
  void bring_inputs(Frame& frame, int l, Stream& stream);
  void backward_layer(Frame& frame, int l, const Params& params, Grads& grads, Backward backward,
                      Stream& stream);
  void run_head(Frame& frame, const Params& params, Grads& grads, float scale, const HeadSums& sums,
                Stream& stream);
  Tensor gradient(Frame& frame, int l);
  Tensor passing(int chunk, int l, int64_t rows = 0) const;
  void place_constants(Memory& memory, Stream& stream);
  void allocate_texts(Memory& memory);
  model::KvCache kv_cache_of(int chunk, int l) const;  // undefined outside of a pass over texts
  void measure();
  void measure(int chunk, Stream& discard);
  void measure_backward(Frame& dry, int chunk, Stream& discard);
  // to = what this rank computes of every sample of a micro-batch.
  void take_part(Tensor to, Tensor whole, Stream& stream) const;
  Tensor targets(int micro) const;
  void load_documents(int micro, const Tensor& documents, Stream& stream);
  Tensor documents(int micro) const;  // undefined without a document mask
  // What a layer does wrong is said with its name and with what it was given, because it may be a user's own.
  // While the error is handled; other errors go on as they are.
  [[noreturn]] void fail_in_layer(const char* pass, const Frame& frame, int l, const Error& e) const;
  // What layer l of the frame's chunk does, for the trace where there is one; the head is behind the last.
  TraceEvent shown(const char* what, const Frame& frame, int l) const;

  const StageLayers layers_;
  zero::PlannedVisits& visits_;
  const Passes passes_;
  LayerStates states_;
  Frames frames_;
  Tensor side_losses_;
  Buffer passing_[2];  // in turn: gradients of layer boundaries; without training, the boundaries themselves
  Buffer scratch_memory_, targets_, documents_, losses_;
  Buffer text_rows_;                             // [2, text_rows()]: TextRows of the pass
  std::vector<Buffer> kept_keys_, kept_values_;  // of every layer of the model; empty where nothing is kept
  const TextPass* texts_ = nullptr;
  std::vector<Buffer> constant_copies_;
  std::vector<Tensor> constants_;  // where the layers compute
  std::vector<Position> positions_;
  Arena scratch_;
  AwayInputs away_inputs_;
  Event loaded_;
  int64_t passing_bytes_ = 0, block_bytes_ = 0;  // of one of passing_; of the largest input that is away
  int visit_ = 0;                                // of the current pass
  Trace* trace_ = nullptr;
};

}  // namespace cleave::runtime
