// What a model is made of: layers in order, with explicit forward and backward. Layers own no parameters and
// no activations; they declare the first, take the second from an arena, and receive views for the duration
// of a call. So the store may shard, move and free parameters without any layer knowing.
//
// Before training the same code runs without memory, to measure what it takes: forward and backward are
// called with tensors that have types and shapes and nothing behind them. A layer therefore touches elements
// only in kernels (launch) or in tasks that it gives to args.stream.enqueue; both are left out of a dry pass.
// Tensor::as throws when there is no memory, with these words; Tensor::has_memory asks.
#pragma once
#include <limits>
#include <memory>

#include "config_schema/adapter_rule.h"
#include "config_schema/fp8_rule.h"
#include "config_schema/freeze_rule.h"
#include "core/param_spec.h"
#include "model/layer_args.h"

namespace cleave::model {

// The key/value heads of which a layer keeps every position of a text that grows; none: the layer looks at no
// other position.
struct KeptHeads {
  int64_t heads = 0, head_dim = 0;
};

class Layer {
 public:
  virtual ~Layer() = default;
  // The units whose parameters the layer uses; parameters reach forward and backward in this order.
  virtual std::vector<UnitSpec> units() const = 0;
  virtual TensorSpec output(const TensorSpec& input) const = 0;
  virtual void forward(const ForwardArgs& args) const = 0;
  virtual void backward(const BackwardArgs& args) const = 0;
  virtual KeptHeads kept_heads() const { return {}; }
  // What the layer remembers; views of it reach forward, backward and join in this order.
  virtual std::vector<LayerState> states() const { return {}; }
  // Once a step, on every rank that holds the layer, when what was seen has been reduced: writes the lasting
  // parts, from them and the seen parts alone, so that all ranks write the same.
  virtual void join(std::span<const StateViews> states, Stream& stream) const;
  // Whether its passes have a loss of their own (ForwardArgs::side_loss).
  virtual bool has_side_loss() const { return false; }
  // Freezes those of its parameters that the rule fits, before anything asks for its units. A layer that
  // knows nothing of it says in units() what is frozen; here, Error(usage) where the rule fits what is not.
  virtual void freeze(const config::FreezeRule& rule);
  // Puts adapters beside those of its linear layers that the rule fits, before anything asks for its units,
  // and adds the names of all that could have one to `linears`.
  virtual void attach(const config::AdapterRule&, std::vector<std::string>& /*linears*/) {}
  // Does the products of its linear layers in FP8 from now on, before anything asks for its states; false: it
  // has none that it could.
  virtual bool use_fp8(const config::Fp8Rule&) { return false; }
  // Whether backward knows the parts input and weight; otherwise it is always asked for both at once.
  virtual bool splits_backward() const { return false; }
  // Arithmetic of one forward and backward, to balance a pipeline. Here: 6 a weight of a matrix and row of
  // the output, 4 where it is frozen, which is right for dense layers.
  virtual double flops(const TensorSpec& input) const;
};

// The logits that a head has in memory at a time. Their number changes how often gradients of the head's
// weights are rounded, and their type the logits; so both follow from the configuration and the kind of
// device, never from what memory happens to be free.
struct LogitsChunk {
  int64_t rows = std::numeric_limits<int64_t>::max();  // at most
  int64_t bytes = int64_t{128} << 20;  // at most, with those of their gradient; one row fits always
  // Gradients have the model's type. Where that is this type as well, they take the place of the logits.
  DType type = DType::fp32;
  // Of narrow models more rows, until their part of the head's input has so many elements: its gradient is
  // the smallest of the head's products, and has to keep the whole device busy.
  int64_t input = 0;

  // Rows at a time, of so many of this width with so many columns: equal chunks.
  int64_t rows_of(int64_t all, int64_t bytes_each_row, int64_t width) const {
    const int64_t wanted = std::max(rows, input / width);
    const int64_t most = std::max<int64_t>(1, std::min(wanted, bytes / bytes_each_row));
    return ceil_div(all, std::max<int64_t>(1, ceil_div(all, most)));
  }
  bool operator==(const LogitsChunk&) const = default;
};

// One training or evaluation call of the head.
struct HeadArgs {
  Tensor losses;  // [rows] fp32, one a row of x
  Tensor dx;      // gradient of scale * sum(losses); undefined when evaluating
  Tensor x, targets;
  std::span<const Tensor> params;
  std::span<ParamGradient> grads;  // empty when evaluating
  float scale = 1;
  Arena& scratch;
  Stream& stream;
  LogitsChunk logits = {};  // of a head that has them
  // [rows] fp32, defined when evaluating a head that counts_hits(): 1 in each row whose target is the class
  // with the largest logit (CrossEntropy says which of equal ones), else 0. Where a tensor axis cuts the
  // classes, only on the rank that has the target's.
  Tensor hits = {};
};

// The last stop: turns activations and targets into losses, and in training also into gradients, in one call,
// because the logits of all rows never exist at the same time.
class Head {
 public:
  virtual ~Head() = default;
  virtual std::vector<UnitSpec> units() const = 0;
  virtual void freeze(const config::FreezeRule& rule);  // as a layer
  virtual void run(const HeadArgs& args) const = 0;
  // logits [rows.size(), columns] fp32 of these rows of the micro-batch's part whose x this is (all ranks'
  // rows where a tensor axis cuts them), for generation and prediction.
  virtual void logits(Tensor logits, Tensor x, Range rows, std::span<const Tensor> params, Arena& scratch,
                      Stream& stream) const = 0;
  virtual int64_t classes() const = 0;
  // The columns of the logits that this rank computes: the r-th rank of a tensor axis has the classes from r
  // * columns on, and what is past the last class is padding.
  virtual int64_t columns() const { return classes(); }
  // Whether run() writes HeadArgs::hits, from which an evaluation has its accuracy.
  virtual bool counts_hits() const { return false; }
};

struct Model {
  std::string name;
  std::vector<std::unique_ptr<Layer>> layers;
  std::unique_ptr<Head> head;
  DType dtype = DType::fp32;  // of parameters and activations
  // What all layers read and nobody writes, in host memory that `memory` owns. A stage whose layers compute
  // elsewhere holds a copy there.
  std::vector<Tensor> constants;
  std::shared_ptr<const void> memory;
  TensorSpec sample;  // of one sample: the input of a micro-batch of n samples has n times as many rows
  int64_t rows_per_sample = 1;  // rows of the head's x, and of the targets
  // Batches are of whole samples; sample and rows_per_sample are of the part of each, in `parts` equal ones,
  // that this rank computes.
  int64_t part = 0, parts = 1;
  // Attention and positions stay inside documents, whose beginnings every batch has to bring.
  bool document_mask = false;
  bool cuts_boundaries = false;  // a layer's input may be this rank's columns of it, not what all ranks have
  double flops_per_sample = 0;   // of the whole: forward and backward, no recomputation

  TensorSpec input(int64_t samples) const {
    TensorSpec spec = sample;
    spec.shape.dims[0] *= samples;
    return spec;
  }
  int64_t params() const;  // of the whole tensors, tied ones once
  int64_t frozen_params() const;
  // All of its layers and its head, by patterns of names (cleave.freeze). Error(usage) where a pattern fits
  // no parameter, and where nothing would train.
  void freeze(const std::vector<std::string>& patterns);
  // Freezes all parameters and puts adapters beside its linear layers of these names (cleave.lora).
  // Error(usage) where a target names none of them.
  void attach(const std::vector<std::string>& targets, config::AdapterSize size);
  // The products of its blocks' linear layers are in FP8 from now on (cleave.fp8). Error(usage) where it has
  // none.
  void use_fp8(const config::Fp8Rule& rule);
  // What published files write before its parameters' names where it leaves it out, "transformer." of GPT-2.
  std::string prefix = {};
  // For people: the layer's first unit, "layer.3" where it has none; "head" behind the last.
  std::string layer_name(int l) const;
  // The units of all layers and the head, each once, in the order in which they are first used.
  std::vector<UnitSpec> units() const;
};

}  // namespace cleave::model
