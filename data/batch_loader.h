// Micro-batches of samples, as views of the loader's memory: inputs and targets are [micro_batch * seq_len]
// int32. Training reads all micro-batches of a step at once and prefetches the next step, so a step starts
// only after its data were read without errors. The contents of a micro-batch are a function of (step, micro,
// rank); the prefetching worker only changes the time of the read.
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

// A training file and its share of the samples (data/blend.h).
struct TokenSource {
  const TokenFile* file = nullptr;
  int64_t share = 1;
};

struct TokenBatchesOptions {
  int64_t seq_len = 0, micro_batch = 1, accumulation = 1;
  int rank = 0, ranks = 1;  // data-parallel
  uint64_t seed = 0;
  bool shuffle = true, drop_last = false;
  bool pack = false, document_mask = false;  // as in SampleOptions
};

// Training batches of one rank of the data-parallel group.
class TokenBatches {
 public:
  // The file must outlive this object. Throws Error(data) with the numbers if the file is shorter than one
  // sample, or has fewer samples than one step needs.
  TokenBatches(const TokenFile& file, const TokenBatchesOptions& options);
  // Loads from several files, which must outlive this object. Blend selects sample n, counted over all steps
  // and ranks. Each source is shuffled separately, with a new order in each of its epochs. A single file uses
  // the order of Sampler, with epochs that end at a step.
  TokenBatches(const std::vector<TokenSource>& sources, const TokenBatchesOptions& options);
  ~TokenBatches();

  // Waits for the data of a step, counted from 0, and throws errors of reading them.
  void prepare(int64_t step);
  // All micro-batches of a step; valid until a call with another step. Waits and throws like prepare().
  std::vector<Batch> step(int64_t step);
  // Accepts any 0-based (step, micro); sequential access is prefetched. The result is valid until a call with
  // another step. Throws errors of reading for every micro-batch of the step. Calls must not overlap.
  Batch next(int64_t step, int64_t micro);

  const Sampler& sampler() const { return sampler_; }  // of a single file
  // Position before a step; with `global_batch`, before a step of a training from scratch with that batch
  // size.
  Position position(int64_t step) const;
  Position position(int64_t step, int64_t global_batch) const;
  // Continues a training at a position; call before prepare(), step() and next().
  void continue_at(int64_t step, Position position);
  // Makes the 0-based step begin after its data, which are never used. May be called several times for a
  // step.
  void skip(int64_t step);
  const std::vector<int64_t>& skips() const { return sampler_.skips; }
  // Source and sample at `position`, in [0, global batch), of the 0-based step.
  Blend::SourceSample place(int64_t step, int64_t position) const;

 private:
  TokenBatchesOptions options_;
  std::vector<std::unique_ptr<Samples>> sources_;
  std::optional<Blend> blend_;  // for several sources
  Sampler sampler_;
  std::unique_ptr<WindowPrefetch> prefetch_;
};

struct EvalBatchesOptions {
  int64_t seq_len = 0, micro_batch = 1;
  int rank = 0, ranks = 1;
  bool pack = false, document_mask = false;
};

// Evaluation batches: every sample of the files exactly once over all ranks, in order, one file after
// another. Every token with a predecessor is a target once; the last window is padded. All ranks have the
// same number of whole micro-batches; rows after the end have input 0 and targets kIgnoredTarget.
class EvalBatches {
 public:
  EvalBatches(const TokenFile& file, const EvalBatchesOptions& options);
  // Loads from several files, which must outlive this object; no sample spans two files.
  EvalBatches(const std::vector<TokenFile>& files, const EvalBatchesOptions& options);
  ~EvalBatches();

  int64_t micros() const { return micros_; }  // per rank

  // `micro` is in [0, micros()); the result is valid until the next call. Otherwise like TokenBatches::next.
  // The first row is a sample of a file, not padding.
  Batch next(int64_t micro);

 private:
  EvalBatches(std::unique_ptr<Samples> samples, const EvalBatchesOptions& options);

  EvalBatchesOptions options_;
  std::unique_ptr<Samples> samples_;
  int64_t micros_;
  std::unique_ptr<WindowPrefetch> prefetch_;
};

}  // namespace cleave::data
