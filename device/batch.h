// What a step is fed with: micro-batches in host memory, from a loader of data/ or from anywhere else.
#pragma once
#include <functional>

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
  // Of samples that are packed documents: for each position of every whole sample the place in it where its
  // document begins, int32, as AttentionMask has it. A model with a document mask wants it, others do not
  // look.
  Tensor documents = {};
  Position position = {};  // seed and step are the engine's to fill in
};

// The next micro-batch of this rank: micro counts from 0. Its memory must stay valid until the next call.
using BatchSource = std::function<Batch(int micro)>;

// A batch of values that the caller keeps, and that are only read: a token for each target, ...
Batch batch_of(std::span<const int32_t> tokens, std::span<const int32_t> targets);
// ... or a row of features for each. Error(data) where their number is not a multiple of the targets'.
Batch batch_of(std::span<const float> features, std::span<const int32_t> targets);

}  // namespace cleave
