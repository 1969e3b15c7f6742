// What a model is made of: layers in order, with explicit forward and backward. Layers own no parameters and
// no activations; they declare the first, take the second from an arena, and receive views for the duration
// of a call. So the store may shard, move and free parameters without any layer knowing.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "core/param_spec.h"
#include "core/philox.h"
#include "device/arena.h"
#include "device/stream.h"

namespace cleave {

struct TensorSpec {
  DType dtype = DType::fp32;
  Shape shape;
};

// What a layer keeps from forward to backward, in the order in which it kept it.
class Saved {
 public:
  Tensor keep(Arena& arena, DType dtype, Shape shape) {
    return tensors_.emplace_back(arena.take(dtype, shape));
  }
  const Tensor& operator[](int i) const { return tensors_[size_t(i)]; }

 private:
  std::vector<Tensor> tensors_;
};

// The gradient of one parameter. A layer calls accumulate() exactly once for each write it makes: it says
// whether to add to the tensor or to overwrite it.
struct ParamGradient {
  Tensor tensor;
  bool* written = nullptr;
  bool accumulate() { return std::exchange(*written, true); }
};

// Where a micro-batch stands in the training run, so that random numbers (dropout) are functions of it.
struct Position {
  uint64_t seed = 0;
  int64_t step = 0;
  int64_t first_sample = 0;  // index, within the step's global batch, of the micro-batch's first sample
};

struct ForwardArgs {
  Tensor y, x;
  std::span<const Tensor> params;
  Saved& saved;
  Arena& keep;     // lives until backward
  Arena& scratch;  // lives for the call
  Position position;
  bool train = true;  // false: nothing needs to be kept and dropout is off
  Stream& stream;
  // Keep only what is dear to make again; the backward is told the same. A layer may ignore it.
  bool lean = false;
  std::span<const Tensor> constants = {};  // the model's, where the layer computes
};

// Which gradients a backward computes. A pipeline schedule may ask for the input's first, because another
// rank waits for it, and for the parameters' later.
enum class BackwardPart { both, input, weight };

struct BackwardArgs {
  Tensor dx;  // undefined when nobody needs it (the first layer), and in the part `weight`
  Tensor dy, x;
  std::span<const Tensor> params;  // empty in the part `weight`
  std::span<ParamGradient> grads;  // empty in the part `input`
  const Saved& saved;
  Arena& scratch;
  Position position;
  Stream& stream;
  BackwardPart part = BackwardPart::both;
  // Set when the backward is split: what `input` keeps for `weight`, from an arena that lives until then. dy
  // and x live as long.
  Saved* for_weight = nullptr;
  Arena* keep = nullptr;
  bool lean = false;  // as the forward was told
  std::span<const Tensor> constants = {};
};

class Layer {
 public:
  virtual ~Layer() = default;
  // The units whose parameters the layer uses; parameters reach forward and backward in this order.
  virtual std::vector<UnitSpec> units() const = 0;
  virtual TensorSpec output(const TensorSpec& input) const = 0;
  virtual void forward(const ForwardArgs& args) const = 0;
  virtual void backward(const BackwardArgs& args) const = 0;
  // Whether backward knows the parts input and weight; otherwise it is always asked for both at once.
  virtual bool splits_backward() const { return false; }
  // Arithmetic of one forward and backward, to balance a pipeline. Here: 6 a weight of a matrix and row of
  // the output, which is right for dense layers.
  virtual double flops(const TensorSpec& input) const;
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
};

// The last stop: turns activations and targets into losses, and in training also into gradients, in one call,
// because the logits of all rows never exist at the same time.
class Head {
 public:
  virtual ~Head() = default;
  virtual std::vector<UnitSpec> units() const = 0;
  virtual void run(const HeadArgs& args) const = 0;
  // logits [rows of the micro-batch, columns] fp32 of x, for generation and prediction.
  virtual void logits(Tensor logits, Tensor x, std::span<const Tensor> params, Arena& scratch,
                      Stream& stream) const = 0;
  virtual int64_t classes() const = 0;
  // Of the logits that this rank computes: the r-th rank of a tensor axis has the classes from r * columns
  // on, and what is past the last class is padding.
  virtual int64_t columns() const { return classes(); }
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
  double flops_per_sample = 0;  // of the whole: forward and backward, no recomputation

  TensorSpec input(int64_t samples) const {
    TensorSpec spec = sample;
    spec.shape.dims[0] *= samples;
    return spec;
  }
  int64_t params() const;  // of the whole tensors, tied ones once
  // The units of all layers and the head, each once, in the order in which they are first used.
  std::vector<UnitSpec> units() const;
};

}  // namespace cleave
