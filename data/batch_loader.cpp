#include "data/batch_loader.h"

#include "data/window_prefetch.h"

namespace cleave {
namespace {

void check_sizes(int64_t micro_batch, int64_t accumulation, int rank, int ranks) {
  CHECK(micro_batch > 0 && accumulation > 0, "micro-batches of {} samples, {} a step", micro_batch,
        accumulation);
  CHECK(0 <= rank && rank < ranks, "rank {} of {}", rank, ranks);
}

// The tokens [begin, end) of what was read.
Batch view(WindowPrefetch::Filled& filled, Range tokens, int64_t valid_targets, int64_t first_sample) {
  const Shape shape{tokens.size()};
  return {.input = {filled.input.data() + tokens.begin, DType::int32, shape, MemoryKind::host},
          .targets = {filled.targets.data() + tokens.begin, DType::int32, shape, MemoryKind::host},
          .valid_targets = valid_targets,
          .position = {.first_sample = first_sample}};
}

}  // namespace

TokenBatches::TokenBatches(const TokenFile& file, const TokenBatchesOptions& options) : options_(options) {
  const auto& o = options_;
  check_sizes(o.micro_batch, o.accumulation, o.rank, o.ranks);
  const Windows windows = windows_of(file, o.seq_len);
  sampler_ = {.samples = windows.size(),
              .seed = o.seed,
              .shuffle = o.shuffle,
              .drop_last = o.drop_last,
              .global_batch = o.micro_batch * o.accumulation * o.ranks};
  require(sampler_.samples >= sampler_.global_batch, Exit::data,
          "{}: holds {} samples of {} tokens, but one step takes {} (micro batch {} x accumulation {} x {} "
          "ranks); use "
          "a longer text, a smaller --seq_len, a smaller train_batch_size or fewer ranks",
          file.path(), sampler_.samples, o.seq_len, sampler_.global_batch, o.micro_batch, o.accumulation,
          o.ranks);
  sampler_.check();
  prefetch_ = std::make_unique<WindowPrefetch>(
      windows, o.micro_batch * o.accumulation, [o = options_, sampler = sampler_](int64_t step, int64_t row) {
        const Range range = micro_batch_positions(row / o.micro_batch, o.rank, o.ranks, o.micro_batch);
        return sampler.sample(step, range.begin + row % o.micro_batch);
      });
}

TokenBatches::~TokenBatches() = default;

Batch TokenBatches::next(int64_t step, int64_t micro) {
  const auto& o = options_;
  CHECK(step >= 0 && 0 <= micro && micro < o.accumulation, "micro-batch {} of {} in step {}", micro,
        o.accumulation, step);
  const int64_t tokens = o.micro_batch * o.seq_len;
  return view(prefetch_->get(step, step + 1), Range{0, tokens}.shifted(micro * tokens), tokens,
              micro_batch_positions(micro, o.rank, o.ranks, o.micro_batch).begin);
}

void TokenBatches::prepare(int64_t step) { prefetch_->get(step, step + 1); }

EvalBatches::EvalBatches(const TokenFile& file, const EvalBatchesOptions& options) : options_(options) {
  const auto& o = options_;
  check_sizes(o.micro_batch, 1, o.rank, o.ranks);
  const Windows windows = windows_of(file, o.seq_len);
  micros_ = ceil_div(windows.size(), o.micro_batch * o.ranks);
  prefetch_ = std::make_unique<WindowPrefetch>(
      windows, o.micro_batch, [o = options_, count = windows.size()](int64_t ordinal, int64_t row) {
        const int64_t window = micro_batch_positions(ordinal, o.rank, o.ranks, o.micro_batch).begin + row;
        return window < count ? window : WindowPrefetch::kNoWindow;
      });
}

EvalBatches::~EvalBatches() = default;

Batch EvalBatches::next(int64_t micro) {
  const auto& o = options_;
  CHECK(0 <= micro && micro < micros_, "micro-batch {} of {}", micro, micros_);
  const int64_t first = micro_batch_positions(micro, o.rank, o.ranks, o.micro_batch).begin;
  WindowPrefetch::Filled& filled = prefetch_->get(micro, (micro + 1) % micros_);
  return view(filled, {0, int64_t(filled.input.size())}, filled.valid_targets, first);
}

}  // namespace cleave
