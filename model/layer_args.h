// Arguments of a layer's calls: views of its parameters, input and output, and arenas for kept state.
#pragma once
#include <any>
#include <span>
#include <vector>

#include "core/philox.h"
#include "device/arena.h"
#include "device/batch.h"
#include "device/stream.h"
#include "kernels/kv_cache.h"
#include "model/layer_state.h"

namespace cleave::model {

struct TensorSpec {
  DType dtype = DType::fp32;
  Shape shape;
};

// State that a layer keeps from forward to backward: the layer's own structs with tensors from its arena,
// identified by their owner and type.
class Saved {
 public:
  // Call once per owner and type.
  template <class Kept>
  void put(const void* owner, Kept kept) {
    CHECK(!find<Kept>(owner), "kept twice");
    kept_.push_back({owner, std::move(kept)});
  }
  template <class Kept>
  const Kept& get(const void* owner) const {
    const Kept* kept = find<Kept>(owner);
    CHECK(kept, "nothing of this kind was kept");
    return *kept;
  }

 private:
  struct Entry {
    const void* owner;
    std::any kept;
  };
  template <class Kept>
  const Kept* find(const void* owner) const {
    for (const Entry& e : kept_)
      if (const auto* kept = std::any_cast<Kept>(&e.kept); kept && e.owner == owner) return kept;
    return nullptr;
  }

  std::vector<Entry> kept_;
};

// Gradient of one parameter. A layer calls accumulate() exactly once per write; it returns true to add to the
// tensor and false to overwrite it. Parameters of a frozen unit have no tensor, and the layer skips the work.
struct ParamGradient {
  Tensor tensor;
  bool* written = nullptr;
  bool wanted() const { return written != nullptr; }
  bool accumulate() {
    CHECK(wanted(), "a layer wrote the gradient of a frozen parameter; ask wanted() first");
    return std::exchange(*written, true);
  }
};

// Incremental generation (KeptHeads in model/layer.h). Rows are in any order, and attention sees earlier
// positions only through the cache.
struct KvCache {
  kernels::TextRows rows;  // rows of x, of all ranks if a tensor axis cuts rows; on the device
  Tensor keys, values;     // [texts, heads, positions, head_dim]; undefined for a layer without a cache
  bool defined() const { return rows.texts.defined(); }
};

struct ForwardArgs {
  Tensor y, x;
  std::span<const Tensor> params;
  Saved& saved;
  Arena& keep;     // lives until backward
  Arena& scratch;  // lives for the call
  Position position;
  bool train = true;  // false: nothing is kept and dropout is off
  Stream& stream;
  // Keep only state that is expensive to recompute; the backward gets the same flag. A layer may ignore it.
  bool lean = false;
  std::span<const Tensor> constants = {};  // the model's constants, on the layer's device
  // With a document mask: AttentionMask's documents of the whole sequences that x is a part of.
  Tensor documents = {};
  // If defined, x has rows of texts instead of whole samples, and nothing is kept for a backward.
  KvCache cache = {};
  std::span<const StateViews> states = {};
  // fp64, one element, for a layer with a side loss in the counted forward (not a recomputation): the layer
  // adds the sum over its rows of a loss, which is added to the target losses. Divided by the number of
  // targets, it is reported and trained on. If the loss of a row depends only on that row and on lasting
  // state, it is independent of micro-batches and layouts. Ranks of a tensor axis that does not cut rows must
  // add the same.
  Tensor side_loss = {};
};

// Selects the gradients that a backward computes. A pipeline schedule can request the input's first, because
// another rank waits for it, and the parameters' later.
enum class BackwardPart { both, input, weight };

struct BackwardArgs {
  Tensor dx;  // undefined if not needed (first layer), and in the part `weight`
  Tensor dy, x;
  std::span<const Tensor> params;  // empty in the part `weight`
  std::span<ParamGradient> grads;  // empty in the part `input`
  const Saved& saved;
  Arena& scratch;
  Position position;
  Stream& stream;
  BackwardPart part = BackwardPart::both;
  // For a split backward: state that `input` keeps for `weight`, from an arena that lives until then. dy and
  // x live as long.
  Saved* for_weight = nullptr;
  Arena* keep = nullptr;
  bool lean = false;  // same as in the forward
  std::span<const Tensor> constants = {};
  Tensor documents = {};
  std::span<const StateViews> states = {};
  // Gradients are those of `scale` times the sum of all rows' losses; it combines the loss scale and the
  // number of targets. dy already includes it; the gradient of a layer's side loss must be multiplied by it.
  float scale = 1;
};

}  // namespace cleave::model
