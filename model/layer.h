// Interfaces of a model: layers in order, with explicit forward and backward. Layers own no parameters and no
// activations: they declare parameters, take activations from an arena, and receive views for the duration of
// a call. The store can therefore shard, move and free parameters independently of the layers.
//
// Before training, the same code runs without memory to measure its needs: forward and backward get tensors
// with types and shapes but no data. A layer may therefore access elements only in kernels (launch) or in
// tasks given to args.stream.enqueue; a dry pass skips both. Tensor::as throws without memory;
// Tensor::has_memory tests for it.
#pragma once
#include <limits>
#include <memory>

#include "config_schema/adapter_rule.h"
#include "config_schema/fp8_rule.h"
#include "config_schema/freeze_rule.h"
#include "core/param_spec.h"
#include "model/layer_args.h"

namespace cleave::model {

// Key/value heads that a layer keeps for every position in incremental generation; 0: the layer does not look
// at other positions.
struct KeptHeads {
  int64_t heads = 0, head_dim = 0;
};

class Layer {
 public:
  virtual ~Layer() = default;
  // Returns the units with the layer's parameters; forward and backward get parameters in this order.
  virtual std::vector<UnitSpec> units() const = 0;
  virtual TensorSpec output(const TensorSpec& input) const = 0;
  virtual void forward(const ForwardArgs& args) const = 0;
  virtual void backward(const BackwardArgs& args) const = 0;
  virtual KeptHeads kept_heads() const { return {}; }
  // Returns the layer's states; forward, backward and join get views of them in this order.
  virtual std::vector<LayerState> states() const { return {}; }
  // Writes the lasting parts once per step on every rank with the layer, after the seen parts were reduced.
  // The result may depend only on these parts, so that all ranks write the same.
  virtual void join(std::span<const StateViews> states, Stream& stream) const;
  // Returns true if its passes have a side loss (ForwardArgs::side_loss).
  virtual bool has_side_loss() const { return false; }
  // Freezes the parameters that match the rule, before the first call of units(). The default throws
  // Error(usage) if the rule matches a parameter that units() does not already declare as frozen.
  virtual void freeze(const config::FreezeRule& rule);
  // Attaches adapters to the linear layers that match the rule, before the first call of units(), and appends
  // the names of all possible targets to `linears`.
  virtual void attach(const config::AdapterRule&, std::vector<std::string>& /*linears*/) {}
  // Switches the products of its linear layers to FP8, before the first call of states(). Returns false if
  // there are none.
  virtual bool use_fp8(const config::Fp8Rule&) { return false; }
  // Returns true if backward supports the parts input and weight; otherwise it always gets both at once.
  virtual bool splits_backward() const { return false; }
  // Returns the FLOPs of one forward and backward, to balance a pipeline. Default: 6 per matrix weight and
  // output row, 4 if frozen, which is correct for dense layers.
  virtual double flops(const TensorSpec& input) const;
};

// Size of the logits that a head has in memory at a time. The number of chunks changes the rounding of the
// head's weight gradients, and the type changes the logits, so both depend on the configuration and the kind
// of device, never on free memory.
struct LogitsChunk {
  int64_t rows = std::numeric_limits<int64_t>::max();  // maximum
  int64_t bytes = int64_t{128} << 20;                  // maximum, including the gradient; one row always fits
  // Gradients have the model's type. If it equals this type, they overwrite the logits.
  DType type = DType::fp32;
  // Narrow models use more rows, until their part of the head's input has this number of elements: its
  // gradient is the smallest of the head's products and has to keep the whole device busy.
  int64_t input = 0;

  // Returns the rows per chunk for `all` rows of this width, in equal chunks.
  int64_t rows_of(int64_t all, int64_t bytes_each_row, int64_t width) const {
    const int64_t wanted = std::max(rows, input / width);
    const int64_t most = std::max<int64_t>(1, std::min(wanted, bytes / bytes_each_row));
    return ceil_div(all, std::max<int64_t>(1, ceil_div(all, most)));
  }
  bool operator==(const LogitsChunk&) const = default;
};

// Arguments of one training or evaluation call of the head.
struct HeadArgs {
  Tensor losses;  // [rows] fp32, one per row of x
  Tensor dx;      // gradient of scale * sum(losses); undefined in evaluation
  Tensor x, targets;
  std::span<const Tensor> params;
  std::span<ParamGradient> grads;  // empty in evaluation
  float scale = 1;
  Arena& scratch;
  Stream& stream;
  LogitsChunk logits = {};  // for a head with logits
  // [rows] fp32, defined in evaluation of a head that counts_hits(): 1 in each row with the largest logit at
  // its target (ties: see CrossEntropy), else 0. If a tensor axis cuts the classes, set only on the rank with
  // the target's class.
  Tensor hits = {};
};

// Last stage of a model: computes losses from activations and targets, and in training also gradients. Both
// happen in one call, because the logits of all rows never exist at the same time.
class Head {
 public:
  virtual ~Head() = default;
  virtual std::vector<UnitSpec> units() const = 0;
  virtual void freeze(const config::FreezeRule& rule);  // as in Layer
  virtual void run(const HeadArgs& args) const = 0;
  // Computes logits [rows.size(), columns] fp32 of these rows of the micro-batch's part x (all ranks' rows if
  // a tensor axis cuts them), for generation and prediction.
  virtual void logits(Tensor logits, Tensor x, Range rows, std::span<const Tensor> params, Arena& scratch,
                      Stream& stream) const = 0;
  virtual int64_t classes() const = 0;
  // Returns the number of logit columns on this rank: rank r of a tensor axis has the classes from r *
  // columns on; columns after the last class are padding.
  virtual int64_t columns() const { return classes(); }
  // Returns true if run() writes HeadArgs::hits, for the accuracy of an evaluation.
  virtual bool counts_hits() const { return false; }
};

struct Model {
  std::string name;
  std::vector<std::unique_ptr<Layer>> layers;
  std::unique_ptr<Head> head;
  DType dtype = DType::fp32;  // of parameters and activations
  // Read-only data of all layers, in host memory owned by `memory`. A stage on another device keeps a copy
  // there.
  std::vector<Tensor> constants;
  std::shared_ptr<const void> memory;
  TensorSpec sample;            // of one sample; a micro-batch of n samples has n times the rows
  int64_t rows_per_sample = 1;  // rows of the head's x, and of the targets
  // Batches contain whole samples; sample and rows_per_sample describe this rank's part of each, one of
  // `parts` equal ones.
  int64_t part = 0, parts = 1;
  // Attention and positions stay inside documents; every batch must give their starts.
  bool document_mask = false;
  bool cuts_boundaries = false;  // inputs of layers may be this rank's columns only

  TensorSpec input(int64_t samples) const {
    TensorSpec spec = sample;
    spec.shape.dims[0] *= samples;
    return spec;
  }
  int64_t params() const;  // elements of whole tensors, tied ones once
  int64_t frozen_params() const;
  // Freezes parameters of the layers and the head by name patterns (cleave.freeze). Throws Error(usage) if a
  // pattern matches no parameter, or if nothing would train.
  void freeze(const std::vector<std::string>& patterns);
  // Freezes all parameters and attaches adapters to the linear layers with these names (cleave.lora). Throws
  // Error(usage) if a target matches none.
  void attach(const std::vector<std::string>& targets, config::AdapterSize size);
  // Switches the products of its blocks' linear layers to FP8 (cleave.fp8). Throws Error(usage) if there are
  // none.
  void use_fp8(const config::Fp8Rule& rule);
  // Prefix of parameter names in published files, if the model omits it: "transformer." for GPT-2.
  std::string prefix = {};
  // Returns a name for users: the layer's first unit, or "layer.3" without one; "head" after the last layer.
  std::string layer_name(int l) const;
  // Returns the units of all layers and the head, each once, in order of first use.
  std::vector<UnitSpec> units() const;
};

}  // namespace cleave::model
