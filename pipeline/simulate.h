// Proves a schedule by executing the instruction lists of all ranks without computations, and measures waits,
// work in flight and duration.
#pragma once
#include <cstdint>
#include <limits>

#include "pipeline/schedule.h"

namespace cleave::pipeline {

struct SimulateOptions {
  static constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();
  bool training = true;           // false: no backwards
  int64_t capacity = kUnlimited;  // maximum messages in a channel before a send waits, at least 1
  // Time of one micro-batch in a piece of work 1; a whole backward takes the sum of both parts.
  double forward = 1, backward_input = 1, backward_weight = 1;
  std::vector<double> work = {};  // per piece; empty: 1 each
  // Per piece: share of the weight gradients that its layers can compute separately, 0 to 1; the rest runs
  // with the input gradient. Empty: 1 each.
  std::vector<double> splits = {};
  bool record = false;  // fill Simulation::spans
};

// One computation of a rank.
struct Span {
  Instruction what;
  double begin = 0, end = 0;
  int frames = 0;  // frames on the rank during the computation, counted like peak_frames
};

struct Simulation {
  // Empty if the proof succeeds: every forward and backward exactly once and after its inputs, messages of a
  // channel received in sending order, no deadlock. Otherwise the first violation, with rank and instruction.
  std::string fault;
  std::vector<int> peak_frames;   // per rank: maximum number of micro-batches (of each chunk) between their
                                  // arrival and the end of their backward
  std::vector<int> peak_weights;  // per rank: those of them with only backward_weight missing
  std::vector<int> peak_batches;  // per rank: batches from the first forward of a micro-batch to its last use
                                  // on the rank, counted as the distance between the newest and the oldest
  int64_t peak_messages = 0;      // per channel
  double makespan = 0;
  std::vector<double> busy;              // per rank
  std::vector<std::vector<Span>> spans;  // per rank, in order; empty unless recorded

  // Idle time of all ranks divided by the time of the whole step.
  double idle_share() const;
};

Simulation simulate(const Schedule& schedule, const SimulateOptions& options = {});

}  // namespace cleave::pipeline
