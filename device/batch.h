// What a step is fed with: micro-batches in host memory, from a loader of data/ or from anywhere else.
#pragma once
#include <functional>
#include <optional>
#include <type_traits>

#include "device/tensor.h"

namespace cleave {

// A target without a loss.
inline constexpr int32_t kIgnoredTarget = -100;

// Where a micro-batch stands in the training run, so that random numbers (dropout) are functions of it.
struct Position {
  uint64_t seed = 0;
  int64_t step = 0;
  int64_t first_sample = 0;  // index, within the step's global batch, of the micro-batch's first sample
};

// One micro-batch of whole samples on this rank. Views into memory of the host that somebody else owns.
struct Batch {
  Tensor input;    // as Model::input, in fp32 where the model's type is a float; int32 tokens otherwise
  Tensor targets;  // [rows] int32
  int64_t valid_targets = 0;  // how many are not kIgnoredTarget
  // Where samples are packed documents: for each position of every whole sample the one in it at which its
  // document begins, int32, as AttentionMask has it. A model with a document mask wants it, others do not
  // look.
  Tensor documents = {};
  Position position = {};  // seed and step are the engine's to fill in
};

// The micro-batches of this rank in one step.
class BatchSource {
 public:
  // next(micro) makes them: it is called once for each, in order, and micro counts from 0. A batch's memory
  // must stay valid until the next call.
  template <class Next>
  requires std::is_invocable_r_v<Batch, Next&, int> BatchSource(Next next) : next_(std::move(next)) {}
  // The same, where the sum of their valid_targets is known before the first is made. Where it is not,
  // training asks for all micro-batches before it computes the first, and keeps copies.
  BatchSource(std::function<Batch(int micro)> next, int64_t valid_targets)
      : next_(std::move(next)), valid_targets_(valid_targets) {}

  Batch operator()(int micro) const { return next_(micro); }
  std::optional<int64_t> valid_targets() const { return valid_targets_; }

 private:
  std::function<Batch(int micro)> next_;
  std::optional<int64_t> valid_targets_;
};

// A batch of values that the caller keeps, and that are only read: a token for each target, or as many tokens
// for each (a label of a sequence), ...
Batch batch_of(std::span<const int32_t> tokens, std::span<const int32_t> targets);
// ... or a row of features for each. Error(data) where their number is not a multiple of the targets'.
Batch batch_of(std::span<const float> features, std::span<const int32_t> targets);

}  // namespace cleave
