// The layers of a rank with the state of all micro-batches in flight: parameters from the store and
// activations from frames, in the order of its passes. The only class that combines layers and ZeRO; it is
// independent of communicators.
#pragma once
#include "runtime/stage/frames.h"
#include "runtime/stage/layer_states.h"
#include "runtime/stage/passes.h"
#include "runtime/stage/stored_inputs.h"

namespace cleave::runtime {

class Stage {
 public:
  // Adds its passes to the visits; their store must have the units of the local layers (units_of). `samples`
  // is the micro-batch size; `axis` is the axis for partitioning kept inputs. The model must outlive the
  // stage.
  Stage(const model::Model& model, StageShape shape, zero::PlannedVisits& visits, int64_t samples,
        const tensor_parallel::TensorAxis& axis);

  // Call after the visits are committed. Allocates activations, sized by a dry run of every layer, and on a
  // GPU copies the model's constants in the order of `stream`.
  void allocate(Memory& memory, Stream& stream);
  void show_in(Trace& trace) { trace_ = &trace, stored_inputs_.show_in(trace); }

  // Sets the destination of the layers' side losses, fp64: a row for each layer of the model with a side
  // loss, a column for each micro-batch. Call before allocate(). The reader has to clear them.
  void put_side_losses(const Tensor& sums) { side_losses_ = sums; }
  LayerStates& states() { return states_; }

  const StageShape& shape() const { return layers_.shape(); }
  // Returns the activation bytes of one micro-batch in a chunk.
  int64_t frame_bytes() const { return frames_.bytes().keep; }
  // Returns the bytes of the largest boundary that this stage receives from others, and sends to others; 0:
  // none.
  int64_t bytes_from_others() const;
  int64_t bytes_to_others() const;

  // Loads the rank's part of a micro-batch: position, input and targets. Call before the first forward.
  void load(int micro, const Batch& batch, Stream& stream);
  // Blocks the host until the last batch was copied and its memory can be reused.
  void wait_until_loaded() { loaded_.wait(); }

  // Makes this incremental generation pass (StageShape::texts) the only micro-batch; null: ends this mode.
  // The pass has at most text_rows() rows, a multiple of the tensor axis' row parts.
  void begin_texts(const TextPass* pass, Stream& stream);
  int64_t text_rows() const { return layers_.input().shape.numel(); }

  // Opens a frame for the micro-batch in the chunk and returns the destination of its input, to be written on
  // `writer`. load() does this for the model's first layer.
  Tensor open(int micro, int chunk, Stream& writer);
  void forward(const Turn& turn, bool train, Stream& stream);
  // Calls this after each layer of later forwards, with the layer's number in the model; null: ends it.
  using SeeOutput = std::function<void(int layer, const Tensor& output, Stream& stream)>;
  void watch_outputs(SeeOutput see) { see_ = std::move(see); }
  Tensor output(int micro, int chunk);  // of the forward
  // Keeps the frame reserved until the event, recorded by the reader or writer of a boundary on another
  // stream.
  void hold(int micro, int chunk, const Event& until);

  // Returns the gradient of the chunk's output, to be set before backward, and of its input, valid after
  // backward.
  Tensor output_gradient(int micro, int chunk);
  Tensor input_gradient(int micro, int chunk);
  // Adds the micro-batch's gradients to the store. After the last layer the head runs first: `scale`
  // multiplies the loss of each row and the side losses, and loss_sum (fp64, one element) = the sum over rows
  // of the unscaled losses. A scale of 0 means a micro-batch without targets, which adds no gradient. With
  // split_backward, adds only gradients that cannot be split; backward_weight adds the rest.
  void backward(const Turn& turn, float scale, Tensor loss_sum, Stream& stream);
  void backward_weight(const Turn& turn, float scale, Stream& stream);

  // Runs the head after the last chunk's forward in inference. Any result may be undefined; logits are
  // [rows.size(), the head's columns] fp32, for these rows of the head's whole input.
  void head(int micro, const HeadSums& sums, Tensor logits, Range rows, Stream& stream);
  void close(int micro, int chunk, Stream& stream);  // frees the frame; backwards do so automatically

 private:
  // Mode of a layer's forward.
  struct Run {
    bool train = true;
    bool again = false;  // recomputation before its backward
    bool alive = false;  // first run, with activations that stay until its backward
    // Returns true if a layer records seen data in its state.
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
  // Before a stop of the backward: waits for its group's input on the device, and starts the fetch of the
  // next one.
  void bring_inputs(Frame& frame, int l, Stream& stream);
  void backward_layer(Frame& frame, int l, const Params& params, Grads& grads, Backward backward,
                      Stream& stream);
  void run_head(Frame& frame, const Params& params, Grads& grads, float scale, const HeadSums& sums,
                Stream& stream);
  Tensor gradient(Frame& frame, int l);
  Tensor passing(int chunk, int l, int64_t rows = 0) const;
  void place_constants(Memory& memory, Stream& stream);
  void allocate_texts(Memory& memory);
  model::KvCache kv_cache_of(int chunk, int l) const;  // undefined outside of generation passes
  void measure();
  void measure(int chunk, Stream& discard);
  void measure_backward(Frame& dry, int chunk, Stream& discard);
  // to = this rank's part of every sample of a micro-batch.
  void take_part(Tensor to, Tensor whole, Stream& stream) const;
  Tensor targets(int micro) const;
  void load_documents(int micro, const Tensor& documents, Stream& stream);
  Tensor documents(int micro) const;  // undefined without a document mask
  // Rethrows an internal error of a layer, possibly a user's, with the layer's name and inputs. Call while
  // handling the error; other errors propagate unchanged.
  [[noreturn]] void fail_in_layer(const char* pass, const Frame& frame, int l, const Error& e) const;
  // Returns the trace event of layer l of the frame's chunk, if tracing; the head follows the last layer.
  TraceEvent shown(const char* what, const Frame& frame, int l) const;

  const StageLayers layers_;
  zero::PlannedVisits& visits_;
  const Passes passes_;
  LayerStates states_;
  Frames frames_;
  Tensor side_losses_;
  Buffer passing_[2];  // alternating: gradients of layer boundaries; in inference the boundaries
  Buffer scratch_memory_, targets_, documents_, losses_;
  Buffer text_rows_;                             // [2, text_rows()]: TextRows of the pass
  std::vector<Buffer> kept_keys_, kept_values_;  // by layer of the model; empty without a KV cache
  const TextPass* texts_ = nullptr;
  std::vector<Buffer> constant_copies_;
  std::vector<Tensor> constants_;  // on the layers' device
  std::vector<Position> positions_;
  Arena scratch_;
  StoredInputs stored_inputs_;
  Event loaded_;
  int64_t passing_bytes_ = 0, block_bytes_ = 0;  // of one of passing_; of the largest off-device input
  int visit_ = 0;                                // index in the current pass
  Trace* trace_ = nullptr;
  SeeOutput see_;
};

}  // namespace cleave::runtime
