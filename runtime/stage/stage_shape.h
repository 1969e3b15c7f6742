// What a stage is given: its part of the model, and turns.
#pragma once
#include "model/layer.h"
#include "runtime/stage/recompute.h"

namespace cleave::runtime {

// What of a model a rank holds, and how much of it is in flight at once.
struct StageShape {
  bool trains = true;           // false: forwards only, so nothing is kept for a backward
  std::vector<Range> chunks;    // layers of each, contiguous, in the model's order
  bool first = true;            // the first chunk begins the model
  bool last = true;             // the last chunk ends it: the head follows
  int frames = 1;               // micro-batches, of each chunk, in flight
  int batches = 1;              // micro-batches whose targets wait
  bool split_backward = false;  // the parts input and weight are asked for apart
  Recompute recompute = {};
  model::LogitsChunk logits = {};
  int64_t texts =
      0;  // that grow on this rank, keys and values of all their positions being kept; forwards only
  int waiting_weights = 0;  // split: micro-batches, of each chunk, that only miss the weights' part
};

// Rows of texts that grow, in place of a micro-batch (TextRows). Its memory outlives the pass.
struct TextPass {
  std::vector<int32_t> tokens, texts, positions;
  int64_t rows() const { return int64_t(tokens.size()); }
};

// Sums over the rows of a micro-batch, fp64 and one element each; what is undefined is not wanted.
struct HeadSums {
  Tensor loss;
  Tensor hits = {};  // HeadArgs::hits, of a head that counts them
};

// One visit of a micro-batch to a chunk.
struct Turn {
  int micro = 0, chunk = 0;
  bool fused = false;  // its whole backward follows its forward at once: parameters are gathered once
  bool last = false;   // the last turn of this step that writes this chunk's gradients in this way
};

}  // namespace cleave::runtime
