// Input of a step: micro-batches in host memory, from a loader of data/ or from the user.
#pragma once
#include <functional>
#include <span>

#include "device/tensor.h"

namespace cleave {

// Target that is excluded from the loss.
inline constexpr int32_t kIgnoredTarget = -100;

// Position of a micro-batch in the training run; dropout's random numbers are functions of it.
struct Position {
  uint64_t seed = 0;
  int64_t step = 0;
  int64_t first_sample = 0;  // index of the micro-batch's first sample within the step's global batch
};

// One micro-batch of whole samples on this rank. The tensors are views of host memory that others own.
struct Batch {
  Tensor input;    // shape of Model::input; fp32 if the model's input type is a float, else int32 tokens
  Tensor targets;  // [rows] int32
  int64_t valid_targets = 0;  // number of targets other than kIgnoredTarget
  // For samples of packed documents: the start of the document at each position of every whole sample, int32,
  // as in AttentionMask. Models with a document mask require it; others ignore it.
  Tensor documents = {};
  Position position = {};  // the engine sets seed and step
};

// Gives the micro-batches of this rank in one step or evaluation: called once per micro-batch, in order, with
// micro from 0. The memory of a batch must stay valid until the next call.
using BatchSource = std::function<Batch(int micro)>;

// Makes a batch of read-only values that the caller owns. The number of tokens must be a multiple of the
// number of targets (1: a target per token; more: a label per sequence). Throws Error(data) otherwise.
Batch batch_of(std::span<const int32_t> tokens, std::span<const int32_t> targets);
// The same for a row of features per target. The number of features must be a multiple of the number of
// targets.
Batch batch_of(std::span<const float> features, std::span<const int32_t> targets);

}  // namespace cleave
