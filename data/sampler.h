// Order of samples in a training: a pure function of the step, so that a resumed run, another number of ranks
// or another micro-batch size has the same global batches. The shuffle is a permutation that is computed, not
// stored: a Feistel network keyed by counter-based random numbers, iterated until the result is below
// `samples` (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002). Memory is O(1) for any number
// of samples.
#pragma once
#include <cstdint>
#include <vector>

#include "core/range.h"

namespace cleave::data {

// Progress of a training in its data: whole epochs, and samples of the current one. A blend has no common
// epochs; all its samples count.
struct Position {
  int64_t epoch = 0, sample = 0;
  bool operator==(const Position&) const = default;
};

struct Sampler {
  int64_t samples = 0;       // in the data set
  uint64_t seed = 0;         // of the shuffle
  bool shuffle = true;       // new permutation every epoch; otherwise file order
  bool drop_last = false;    // incomplete last batch of an epoch: dropped, or filled from the epoch's start
  int64_t global_batch = 1;  // samples per step over all ranks and micro-batches
  // A resumed training continues at a position that steps of another size may have reached.
  int64_t first_step = 0;
  Position first = {};
  // Steps, ascending and possibly repeated, each of which begins after the data of one step that are never
  // used.
  std::vector<int64_t> skips = {};

  // Throws Error(data) without a sample or, with drop_last, without a complete batch.
  void check() const;

  int64_t steps_per_epoch() const;
  int64_t epoch(int64_t step) const { return position(step).epoch; }

  // Position before the 0-based step, which must not be below first_step.
  Position position(int64_t step) const;

  // Index in the data set of the sample at `position`, in [0, global_batch), of the 0-based step.
  int64_t sample(int64_t step, int64_t position) const;
};

// Bijection of [0, samples) that depends on seed and epoch; `index` must be in the range.
int64_t permuted(int64_t index, int64_t samples, uint64_t seed, int64_t epoch);

// Positions of micro-batch `micro` of data-parallel rank `rank` in a step's global batch; it has
// `micro_batch` samples.
inline Range micro_batch_positions(int64_t micro, int64_t rank, int64_t ranks, int64_t micro_batch) {
  const int64_t begin = (micro * ranks + rank) * micro_batch;
  return {begin, begin + micro_batch};
}

}  // namespace cleave::data
