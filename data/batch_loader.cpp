#include "data/batch_loader.h"

#include <algorithm>

#include "data/window_prefetch.h"

namespace cleave::data {
namespace {

void check_sizes(int64_t micro_batch, int64_t accumulation, int rank, int ranks) {
  CHECK(micro_batch > 0 && accumulation > 0, "micro-batches of {} samples, {} a step", micro_batch,
        accumulation);
  CHECK(0 <= rank && rank < ranks, "rank {} of {}", rank, ranks);
}

// Views rows [begin, end) of the filled buffer.
Batch view(WindowPrefetch::Filled& filled, Range rows, int64_t seq_len, int64_t first_sample) {
  const Shape shape{rows.size() * seq_len};
  const auto part = [&](std::vector<int32_t>& all) {
    return Tensor(all.data() + rows.begin * seq_len, DType::int32, shape, MemoryKind::host);
  };
  return {.input = part(filled.input),
          .targets = part(filled.targets),
          .valid_targets = filled.valid_in(rows),
          .documents = filled.documents.empty() ? Tensor() : part(filled.documents),
          .position = {.first_sample = first_sample}};
}

// Derives a separate seed per source, so that files of equal size get different shuffles.
uint64_t seed_of(uint64_t seed, int source) { return seed + uint64_t(source) * 0x9E3779B97F4A7C15ull; }

}  // namespace

TokenBatches::TokenBatches(const TokenFile& file, const TokenBatchesOptions& options)
    : TokenBatches(std::vector<TokenSource>{{&file}}, options) {}

TokenBatches::TokenBatches(const std::vector<TokenSource>& sources, const TokenBatchesOptions& options)
    : options_(options) {
  const auto& o = options_;
  CHECK(!sources.empty(), "no data");
  check_sizes(o.micro_batch, o.accumulation, o.rank, o.ranks);
  const SampleOptions cut{.seq_len = o.seq_len, .pack = o.pack, .document_mask = o.document_mask};
  for (const TokenSource& s : sources) sources_.push_back(samples_of(*s.file, cut));
  sampler_ = {.samples = sources_[0]->size(),
              .seed = o.seed,
              .shuffle = o.shuffle,
              .drop_last = o.drop_last,
              .global_batch = o.micro_batch * o.accumulation * o.ranks};
  if (sources.size() > 1) {
    std::vector<int64_t> shares;
    for (const TokenSource& s : sources) shares.push_back(s.share);
    blend_.emplace(std::move(shares));
  } else {
    require(sampler_.samples >= sampler_.global_batch, Exit::data,
            "{}: holds {} samples of {} tokens, but one step takes {} (micro batch {} x accumulation {} x {} "
            "ranks); use "
            "a longer text, a smaller --seq_len, a smaller train_batch_size or fewer ranks",
            sources[0].file->name(), sampler_.samples, o.seq_len, sampler_.global_batch, o.micro_batch,
            o.accumulation, o.ranks);
    sampler_.check();
  }
  prefetch_ = std::make_unique<WindowPrefetch>(
      cut, o.micro_batch * o.accumulation, [this](int64_t step, int64_t row, const SampleRow& to) {
        const Range range = micro_batch_positions(row / options_.micro_batch, options_.rank, options_.ranks,
                                                  options_.micro_batch);
        const Blend::SourceSample at = place(step, range.begin + row % options_.micro_batch);
        sources_[size_t(at.source)]->read(at.sample, to);
      });
}

TokenBatches::~TokenBatches() = default;

Blend::SourceSample TokenBatches::place(int64_t step, int64_t position) const {
  if (!blend_) return {0, sampler_.sample(step, position)};
  Blend::SourceSample at = blend_->at(this->position(step).sample + position);
  const int64_t samples = sources_[size_t(at.source)]->size(), epoch = at.sample / samples;
  at.sample %= samples;
  if (options_.shuffle) at.sample = permuted(at.sample, samples, seed_of(options_.seed, at.source), epoch);
  return at;
}

Position TokenBatches::position(int64_t step) const {
  if (!blend_) return sampler_.position(step);
  const int64_t skipped = std::ranges::upper_bound(sampler_.skips, step) - sampler_.skips.begin();
  return {0, sampler_.first.sample + (step - sampler_.first_step + skipped) * sampler_.global_batch};
}

Position TokenBatches::position(int64_t step, int64_t global_batch) const {
  if (blend_) return {0, step * global_batch};
  Sampler sampler = sampler_;
  sampler.first_step = 0, sampler.first = {}, sampler.global_batch = global_batch;
  return sampler.steps_per_epoch() > 0 ? sampler.position(step) : Position{};
}

void TokenBatches::continue_at(int64_t step, Position position) {
  sampler_.first_step = step, sampler_.first = position;
}

void TokenBatches::skip(int64_t step) {
  CHECK(step >= sampler_.first_step, "step {} of a training that continues at step {}", step,
        sampler_.first_step);
  prefetch_->forget();
  sampler_.skips.insert(std::ranges::upper_bound(sampler_.skips, step), step);
}

Batch TokenBatches::next(int64_t step, int64_t micro) {
  const auto& o = options_;
  CHECK(step >= 0 && 0 <= micro && micro < o.accumulation, "micro-batch {} of {} in step {}", micro,
        o.accumulation, step);
  return view(prefetch_->get(step, step + 1), Range{0, o.micro_batch}.shifted(micro * o.micro_batch),
              o.seq_len, micro_batch_positions(micro, o.rank, o.ranks, o.micro_batch).begin);
}

void TokenBatches::prepare(int64_t step) { prefetch_->get(step, step + 1); }

std::vector<Batch> TokenBatches::step(int64_t step) {
  std::vector<Batch> batches;
  for (int64_t micro = 0; micro < options_.accumulation; ++micro) batches.push_back(next(step, micro));
  return batches;
}

namespace {

SampleOptions cut_of(const EvalBatchesOptions& o) {
  return {.seq_len = o.seq_len, .pack = o.pack, .document_mask = o.document_mask, .fill_last = true};
}

// Concatenation of several files' samples.
class Joined final : public Samples {
 public:
  Joined(const std::vector<TokenFile>& files, const SampleOptions& options) {
    for (const TokenFile& file : files) {
      parts_.push_back(samples_of(file, options));
      ends_.push_back(size() + parts_.back()->size());
    }
  }
  int64_t size() const override { return ends_.empty() ? 0 : ends_.back(); }
  void read(int64_t sample, const SampleRow& row) const override {
    const auto part = size_t(std::upper_bound(ends_.begin(), ends_.end(), sample) - ends_.begin());
    parts_[part]->read(part == 0 ? sample : sample - ends_[part - 1], row);
  }

 private:
  std::vector<std::unique_ptr<Samples>> parts_;
  std::vector<int64_t> ends_;
};

}  // namespace

EvalBatches::EvalBatches(const TokenFile& file, const EvalBatchesOptions& options)
    : EvalBatches(samples_of(file, cut_of(options)), options) {}

EvalBatches::EvalBatches(const std::vector<TokenFile>& files, const EvalBatchesOptions& options)
    : EvalBatches(std::make_unique<Joined>(files, cut_of(options)), options) {}

EvalBatches::EvalBatches(std::unique_ptr<Samples> samples, const EvalBatchesOptions& options)
    : options_(options), samples_(std::move(samples)) {
  const auto& o = options_;
  check_sizes(o.micro_batch, 1, o.rank, o.ranks);
  const SampleOptions cut = cut_of(o);
  micros_ = ceil_div(samples_->size(), o.micro_batch * o.ranks);
  prefetch_ = std::make_unique<WindowPrefetch>(
      cut, o.micro_batch,
      [o = options_, samples = samples_.get()](int64_t ordinal, int64_t row, const SampleRow& to) {
        const int64_t sample = micro_batch_positions(ordinal, o.rank, o.ranks, o.micro_batch).begin + row;
        if (sample < samples->size()) return samples->read(sample, to);
        std::fill_n(to.input, o.seq_len, 0);
        std::fill_n(to.targets, o.seq_len, kIgnoredTarget);
        if (to.documents) std::fill_n(to.documents, o.seq_len, 0);
      });
}

EvalBatches::~EvalBatches() = default;

Batch EvalBatches::next(int64_t micro) {
  const auto& o = options_;
  CHECK(0 <= micro && micro < micros_, "micro-batch {} of {}", micro, micros_);
  const int64_t first = micro_batch_positions(micro, o.rank, o.ranks, o.micro_batch).begin;
  return view(prefetch_->get(micro, (micro + 1) % micros_), {0, o.micro_batch}, o.seq_len, first);
}

}  // namespace cleave::data
