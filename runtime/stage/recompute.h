// Activation checkpointing (arXiv 1604.06174) as a value: the inputs of a chunk's layers that a frame keeps,
// and the stops of the backward that recompute forwards.
#pragma once
#include <cstdint>
#include <vector>

#include "config_schema/ds_config.h"

namespace cleave::runtime {

// State of a layer that a frame keeps until the backward. part: less, as a lean layer does. input: nothing,
// so the layer runs again.
enum class Kept : uint8_t { all, part, input };

struct Recompute {
  // Keeps the input of every interval-th layer of a chunk. Activations of the layers in between are dropped
  // after their forward and recomputed before their backward. 0: keeps everything.
  int64_t interval = 0;
  bool lean = false;  // layers keep less and recompute it inside their backward (ForwardArgs::lean)
  // to_host: kept inputs inside a chunk live in pinned host memory. partition: each rank of the tensor axis
  // keeps its part of them.
  bool to_host = false, partition = false;
  // By chunk and layer, with an interval of 1, or 0 if no layer runs again; empty: all layers are as above.
  std::vector<std::vector<Kept>> kept = {};

  bool again() const { return interval > 0; }
  bool again(int chunk, int layer) const {
    return kept.empty() ? again() : kept[size_t(chunk)][size_t(layer)] == Kept::input;
  }
  bool lean_at(int chunk, int layer) const {
    return kept.empty() ? lean : kept[size_t(chunk)][size_t(layer)] == Kept::part;
  }
  // Returns true if a frame keeps the input of the layer; index `layers` means the chunk's output.
  bool keeps(int layer, int layers) const {
    return interval == 0 || layer == layers || layer % interval == 0;
  }
  // Returns true if kept inputs inside a chunk are whole on the device only while they are needed.
  bool moves_inputs() const { return to_host || partition; }
  bool moves_input_at(int layer, int layers) const {
    return moves_inputs() && again() && layer < layers && keeps(layer, layers);
  }
  int groups(int layers) const { return again() ? int((layers + interval - 1) / interval) : 1; }
  bool in_last_group(int layer, int layers) const {
    return interval == 0 || layer / interval == (layers - 1) / interval;
  }
};

// Returns the configured recomputation for a model with `layers` layers.
Recompute recompute_of(const config::CheckpointingConfig& config, int layers);
// Sets the kept state of each layer of a pipeline rank, if the configuration has numbers of layers by rank
// (full_layers, selective_layers): layers at the ends of the chunks keep least, and chunks take turns,
// because the largest one decides the size of all frames. chunks: number of layers of each. Throws
// Error(usage) if the rank has fewer layers.
void keep_layers(Recompute& recompute, const config::CheckpointingConfig& config, int rank,
                 const std::vector<int>& chunks);

// One stop of a chunk's backward; index `layers` means the head. A stop can recompute and run a backward, so
// that parameters are gathered once.
struct Stop {
  int layer = 0;
  bool again = false;     // recomputes its forward
  bool backward = false;  // runs its backward
  bool operator==(const Stop&) const = default;
};

// Returns the stops of a backward. alive: the activations of the last layers still exist, because their
// forward ran just before.
std::vector<Stop> backward_stops(int layers, const Recompute& recompute, bool head, bool alive,
                                 int chunk = 0);

}  // namespace cleave::runtime
