// What a layer receives for the duration of a call: views of its parameters, of its input and output, and
// arenas for what it keeps.
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

// What a layer keeps from forward to backward: structs of its own, whose members are tensors from the arena
// it was given, found again by the one who put them there and by their type.
class Saved {
 public:
  // Once for each owner and type.
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

// The gradient of one parameter. A layer calls accumulate() exactly once for each write it makes: it says
// whether to add to the tensor or to overwrite it. Of a frozen unit's parameters none is wanted: there is no
// tensor, and the layer leaves out the work.
struct ParamGradient {
  Tensor tensor;
  bool* written = nullptr;
  bool wanted() const { return written != nullptr; }
  bool accumulate() {
    CHECK(wanted(), "a layer wrote the gradient of a frozen parameter; ask wanted() first");
    return std::exchange(*written, true);
  }
};

// What a pass over texts that grow brings besides its rows (model/layer.h, KeptHeads). Rows are in any order,
// and only what is kept of earlier positions is seen.
struct KvCache {
  kernels::TextRows rows;  // of x, all ranks' where a tensor axis cuts rows; on the device
  Tensor keys, values;     // [texts, heads, positions, head_dim]; undefined for a layer that keeps none
  bool defined() const { return rows.texts.defined(); }
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
  // Where the model has a document mask: AttentionMask's documents of the whole sequences whose part x is.
  Tensor documents = {};
  // Defined: x has rows of texts in place of whole samples; nothing is kept for a backward.
  KvCache cache = {};
  std::span<const StateViews> states = {};
  // fp64 and one element, where the layer has a side loss, in the forward that counts (not where it runs
  // again): the layer adds the sum over its rows of a loss, to which the losses of the targets are added.
  // Divided by the number of targets as they are, it is reported and trained on; where a loss of a row
  // depends on that row and on lasting state, neither micro-batches nor layouts change it. Ranks of a tensor
  // axis that cuts no rows have to add the same.
  Tensor side_loss = {};
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
  Tensor documents = {};
  std::span<const StateViews> states = {};
  // Gradients are those of `scale` times the sum of all rows' losses: the loss scale is in it and the number
  // of targets. dy is already; the gradient of a layer's side loss is multiplied with it.
  float scale = 1;
};

}  // namespace cleave::model
