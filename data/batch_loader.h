// Micro-batches of token windows, as views into the loader's memory: inputs and targets are [micro_batch *
// seq_len] int32. Training reads those of a whole step at once, and the next step's while the
// current one is computed: whether a step's data can be read is known before it begins. What a micro-batch
// holds is a function of (step, micro, rank); the prefetching worker only changes when it is read.
#pragma once
#include <memory>

#include "data/sampler.h"
#include "data/windows.h"
#include "device/batch.h"

namespace cleave {

class WindowPrefetch;

struct TokenBatchesOptions {
  int64_t seq_len = 0, micro_batch = 1, accumulation = 1;
  int rank = 0, ranks = 1;  // data-parallel
  uint64_t seed = 0;
  bool shuffle = true, drop_last = false;
};

// Training. Each rank of a data-parallel group makes one with its own rank.
class TokenBatches {
 public:
  // The file must outlive this. Throws Error(data) with the numbers when the file is shorter than a window or
  // holds fewer windows than one step takes.
  TokenBatches(const TokenFile& file, const TokenBatchesOptions& options);
  ~TokenBatches();

  // Waits for the data of a step, counted from 0, and throws what went wrong in reading them.
  void prepare(int64_t step);
  // Any 0-based (step, micro); going through them in order is prefetched. The result is valid until another
  // step is asked for. Errors of the worker's reading are thrown here, for every micro-batch of the step.
  // Calls must not overlap.
  Batch next(int64_t step, int64_t micro);

  const Sampler& sampler() const { return sampler_; }

 private:
  TokenBatchesOptions options_;
  Sampler sampler_;
  std::unique_ptr<WindowPrefetch> prefetch_;
};

struct EvalBatchesOptions {
  int64_t seq_len = 0, micro_batch = 1;
  int rank = 0, ranks = 1;
};

// Evaluation: every window of the file exactly once over all ranks, in order. All ranks have the same number
// of micro-batches; rows past the end have input 0 and targets kIgnoredTarget, up to whole micro-batches of
// them.
class EvalBatches {
 public:
  EvalBatches(const TokenFile& file, const EvalBatchesOptions& options);
  ~EvalBatches();

  int64_t micros() const { return micros_; }  // of each rank

  // micro in [0, micros()), valid until the next call; otherwise as TokenBatches::next. The first sample is a
  // window of the file.
  Batch next(int64_t micro);

 private:
  EvalBatchesOptions options_;
  int64_t micros_;
  std::unique_ptr<WindowPrefetch> prefetch_;
};

}  // namespace cleave
