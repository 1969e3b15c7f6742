// Activation checkpointing (arXiv 1604.06174) as a value: which inputs of a chunk's layers a frame keeps, and
// at which stops of the backward layers run their forward again.
#pragma once
#include <cstdint>
#include <vector>

#include "config_schema/ds_config.h"

namespace cleave::runtime {

struct Recompute {
  // Every how many layers, counted from the chunk's first, the input is kept; what these layers make is
  // dropped after their forward and made again before their backward. 0: all is kept.
  int64_t interval = 0;
  bool lean = false;  // layers keep less and make the rest again inside their backward (ForwardArgs::lean)
  // to_host: the kept inputs inside a chunk live in pinned host memory. partition: a rank of the tensor axis
  // keeps its part of each.
  bool to_host = false, partition = false;

  bool again() const { return interval > 0; }
  // Whether a frame keeps the input of the layer; `layers` stands for the chunk's output.
  bool keeps(int layer, int layers) const {
    return interval == 0 || layer == layers || layer % interval == 0;
  }
  // Whether kept inputs inside a chunk are whole on the device only while they are needed.
  bool away() const { return to_host || partition; }
  bool away_at(int layer, int layers) const {
    return away() && again() && layer < layers && keeps(layer, layers);
  }
  int groups(int layers) const { return again() ? int((layers + interval - 1) / interval) : 1; }
  bool in_last_group(int layer, int layers) const {
    return interval == 0 || layer / interval == (layers - 1) / interval;
  }
};

// What the configuration asks for, for a model of so many layers.
Recompute recompute_of(const config::CheckpointingConfig& config, int layers);

// One stop of a chunk's backward; the number of layers stands for the head. The two can fall together, so
// that parameters are gathered once.
struct Stop {
  int layer = 0;
  bool again = false;     // its forward runs again
  bool backward = false;  // its backward runs
  bool operator==(const Stop&) const = default;
};

// alive: what the last layers made is still there, because their forward was the last thing that ran.
std::vector<Stop> backward_stops(int layers, const Recompute& recompute, bool head, bool alive);

}  // namespace cleave::runtime
