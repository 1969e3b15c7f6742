// Proves a schedule by running all its lists against each other with nothing behind them, and measures it:
// what waits for what, what is in flight, how long it takes.
#pragma once
#include <cstdint>
#include <limits>

#include "pipeline/schedule.h"

namespace cleave::pipeline {

struct SimulateOptions {
  static constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();
  bool training = true;           // false: there are no backwards
  int64_t capacity = kUnlimited;  // messages that a channel holds before a send waits, at least 1
  // Time of one micro-batch in a piece of work 1; a whole backward takes both parts.
  double forward = 1, backward_input = 1, backward_weight = 1;
  std::vector<double> work = {};  // of each piece; empty: 1 each
  // For each piece the share of the weights' part that its layers can do apart from the input's, 0 to 1; the
  // rest is done with the input's. Empty: all of it.
  std::vector<double> splits = {};
  bool record = false;  // fill Simulation::spans
};

// One computation of a rank.
struct Span {
  Instruction what;
  double begin = 0, end = 0;
  int frames = 0;  // in flight on the rank meanwhile, as peak_frames counts them
};

struct Simulation {
  // Empty when the proof holds: every forward and backward exactly once and after what it needs, every
  // message of a channel received in the order in which it was sent, nobody waiting forever. Otherwise the
  // first violation, with rank and instruction.
  std::string fault;
  std::vector<int> peak_frames;   // by rank: micro-batches (of each chunk) between their arrival and the end
                                  // of their backward, the largest number at a time
  std::vector<int> peak_weights;  // by rank: of those, the ones whose backward_weight alone is missing
  std::vector<int> peak_batches;  // by rank: from the first forward of a micro-batch to its last use on the
                                  // rank, counted as the distance between the newest and the oldest
  int64_t peak_messages = 0;      // in one channel
  double makespan = 0;
  std::vector<double> busy;              // by rank
  std::vector<std::vector<Span>> spans;  // by rank, in order; empty unless recorded

  // Idle time of all ranks over that of the whole step.
  double idle_share() const;
};

Simulation simulate(const Schedule& schedule, const SimulateOptions& options = {});

}  // namespace cleave::pipeline
