// Micro-batches of samples, as views into the loader's memory: inputs and targets are [micro_batch *
// seq_len] int32. Training reads those of a whole step at once, and the next step's while the
// current one is computed: whether a step's data can be read is known before it begins. What a micro-batch
// holds is a function of (step, micro, rank); the prefetching worker only changes when it is read.
#pragma once
#include <memory>
#include <optional>
#include <vector>

#include "data/blend.h"
#include "data/sampler.h"
#include "data/samples.h"
#include "device/batch.h"

namespace cleave::data {

class WindowPrefetch;

// One of the files that a training reads, and its share of the samples (data/blend.h).
struct TokenSource {
  const TokenFile* file = nullptr;
  int64_t share = 1;
};

struct TokenBatchesOptions {
  int64_t seq_len = 0, micro_batch = 1, accumulation = 1;
  int rank = 0, ranks = 1;  // data-parallel
  uint64_t seed = 0;
  bool shuffle = true, drop_last = false;
  bool pack = false, document_mask = false;  // SampleOptions'
};

// Training. Each rank of a data-parallel group makes one with its own rank.
class TokenBatches {
 public:
  // The file must outlive this. Throws Error(data) with the numbers when the file is shorter than a sample or
  // holds fewer samples than one step takes.
  TokenBatches(const TokenFile& file, const TokenBatchesOptions& options);
  // Loads from several files, which must outlive this. Sample n of the training, counted over all steps and
  // ranks, is what Blend says; each source is shuffled for itself, anew in every epoch of its own. One file
  // alone has the order of Sampler, and epochs that end with a step.
  TokenBatches(const std::vector<TokenSource>& sources, const TokenBatchesOptions& options);
  ~TokenBatches();

  // Waits for the data of a step, counted from 0, and throws what went wrong in reading them.
  void prepare(int64_t step);
  // The valid targets of all micro-batches of a step on this rank. Waits and throws as prepare() does.
  int64_t valid_targets(int64_t step);
  // Any 0-based (step, micro); going through them in order is prefetched. The result is valid until another
  // step is asked for. Errors of the worker's reading are thrown here, for every micro-batch of the step.
  // Calls must not overlap.
  Batch next(int64_t step, int64_t micro);

  const Sampler& sampler() const { return sampler_; }  // of one file
  // Position before a step, and before a step of a training from scratch whose steps had `global_batch`
  // samples.
  Position position(int64_t step) const;
  Position position(int64_t step, int64_t global_batch) const;
  // Continues a training at a position, before the first call of prepare, valid_targets or next.
  void continue_at(int64_t step, Position position);
  // The source and its sample at `position`, in [0, global batch), of the 0-based step.
  Blend::SourceSample place(int64_t step, int64_t position) const;

 private:
  TokenBatchesOptions options_;
  std::vector<std::unique_ptr<Samples>> sources_;
  std::optional<Blend> blend_;  // of several
  Sampler sampler_;
  std::unique_ptr<WindowPrefetch> prefetch_;
};

struct EvalBatchesOptions {
  int64_t seq_len = 0, micro_batch = 1;
  int rank = 0, ranks = 1;
  bool pack = false, document_mask = false;
};

// Evaluation: every sample of the files exactly once over all ranks, in order, one file after the other, so
// that every token that has a token before it is a target once; windows have a last one that is filled up.
// All ranks have the same number of micro-batches; rows past the end have input 0 and targets kIgnoredTarget,
// up to whole micro-batches of them.
class EvalBatches {
 public:
  EvalBatches(const TokenFile& file, const EvalBatchesOptions& options);
  // Loads from several files, which must outlive this; no sample has tokens of two.
  EvalBatches(const std::vector<TokenFile>& files, const EvalBatchesOptions& options);
  ~EvalBatches();

  int64_t micros() const { return micros_; }  // of each rank

  // micro in [0, micros()), valid until the next call; otherwise as TokenBatches::next. The first sample is
  // one of the file.
  Batch next(int64_t micro);

 private:
  EvalBatches(std::unique_ptr<Samples> samples, const EvalBatchesOptions& options);

  EvalBatchesOptions options_;
  std::unique_ptr<Samples> samples_;
  int64_t micros_;
  std::unique_ptr<WindowPrefetch> prefetch_;
};

}  // namespace cleave::data
