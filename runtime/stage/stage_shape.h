// Inputs of a stage: its part of the model, and turns.
#pragma once
#include "model/layer.h"
#include "runtime/stage/recompute.h"

namespace cleave::runtime {

// A rank's part of the model, and the number of micro-batches in flight.
struct StageShape {
  bool trains = true;           // false: forwards only, without state for a backward
  std::vector<Range> chunks;    // layers of each chunk, contiguous, in the model's order
  bool first = true;            // the first chunk starts the model
  bool last = true;             // the last chunk ends the model and has the head
  int frames = 1;               // micro-batches in flight per chunk
  int batches = 1;              // micro-batches with targets in memory
  bool split_backward = false;  // runs the input and weight parts separately
  Recompute recompute = {};
  model::LogitsChunk logits = {};
  int64_t texts = 0;        // texts with a KV cache on this rank; forwards only
  int waiting_weights = 0;  // split backward: micro-batches per chunk that wait only for the weight part
};

// Rows of incremental generation, instead of a micro-batch (TextRows). Its memory must outlive the pass.
struct TextPass {
  std::vector<int32_t> tokens, texts, positions;
  int64_t rows() const { return int64_t(tokens.size()); }
};

// Sums over the rows of a micro-batch, fp64 with one element each; undefined ones are not computed.
struct HeadSums {
  Tensor loss;
  Tensor hits = {};  // HeadArgs::hits, for a head that counts them
};

// One visit of a micro-batch to a chunk.
struct Turn {
  int micro = 0, chunk = 0;
  bool fused = false;  // its whole backward follows its forward directly: parameters are gathered once
  bool last = false;   // last turn of this step that writes this chunk's gradients in this way
};

}  // namespace cleave::runtime
