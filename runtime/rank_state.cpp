#include "runtime/rank_state.h"

#include <cmath>
#include <numeric>

#include "device/copy.h"
#include "runtime/state_records.h"

namespace cleave::runtime {
namespace {

Stream::Mode mode_of(bool dry, Stream::Mode otherwise) { return dry ? Stream::Mode::dry : otherwise; }

// Of a stream beside `compute`: a thread where it is used.
Stream::Mode beside(bool used) { return used ? Stream::Mode::worker : Stream::Mode::inline_; }

// Of the squared multiples of 2^-grid whose sum has these words (SumIntegerSquares). Carried first, so that
// the result is a function of the sum.
double square_of(std::span<const int64_t> words, int grid) {
  uint64_t carry = 0;
  double sum = 0;
  for (int w = 0; w < 4; ++w) {
    const uint64_t word = uint64_t(words[size_t(w)]) + carry;
    const uint64_t here = w < 3 ? word & 0xffffffffu : word;
    carry = word >> 32;
    sum += std::ldexp(double(here), 32 * w - 2 * grid);
  }
  return sum;
}

}  // namespace

Streams::Streams(const Settings& s, Stream::Mode otherwise, bool dry)
    : comm_overlaps(s.comm_overlaps),
      rows_overlap(s.rows_overlap),
      compute(dry ? Device{} : s.device, mode_of(dry, otherwise)),
      overlapped(dry ? Device{} : s.device, mode_of(dry, beside(comm_overlaps))),
      rows(dry || !rows_overlap ? Device{} : s.device, mode_of(dry, beside(rows_overlap))) {
  if (s.config.tf32) compute.allow_tf32();
  if (!s.config.deterministic) compute.allow_any_order();
  if (s.config.tune_products && !s.config.exact_sums) compute.measure_choices();
}

void Streams::name_in(Trace& trace) const {
  trace.name(compute, "compute");
  if (comm_overlaps) trace.name(overlapped, "communication");
  if (rows_overlap) trace.name(rows, "tensor axis");
}

Workspaces::Workspaces(Memory& memory, Streams& streams)
    : compute(allocate_workspace(memory, kKernelScratch)),
      comm(streams.comm_overlaps ? allocate_workspace(memory, kCopyScratch) : Workspace{}),
      rows(streams.rows_overlap ? allocate_workspace(memory, kCopyScratch) : Workspace{}) {
  compute.lend_to(streams.compute);
  if (streams.comm_overlaps) comm.lend_to(streams.overlapped);
  if (streams.rows_overlap) rows.lend_to(streams.rows);
}

namespace {

StageShape stage_shape(const Settings& s, const PipelineCut& pipeline) {
  StageShape shape = pipeline.stages[size_t(s.place.pipe)];
  shape.logits = s.logits, shape.texts = s.texts;
  return shape;
}

}  // namespace

RankState::RankState(const Settings& s, const model::Model& model, const PipelineCut& pipeline,
                     const Ranks& ranks, Streams& streams, Memory& memory)
    : spaces(memory, streams),
      store(memory, store_options(s, model), streams.compute, streams.comm()),
      visits(memory, store, streams.compute, streams.comm()),
      stage(model, stage_shape(s, pipeline), visits, s.config.train_micro_batch_size_per_gpu,
            ranks.axes().tensor, ShardingRule(s, ranks)) {
  if (s.trains) {
    auto owned = std::make_unique<zero::ShardedOptimizer>(
        memory, store, optim::make_optimizer(s.config.optimizer), s.state_home, *ranks.mesh().tensor);
    trained = owned.get(), saved = std::move(owned);
  } else {
    std::vector<int> units(size_t(store.units()));
    std::iota(units.begin(), units.end(), 0);
    saved = std::make_unique<zero::WeightLoader>(memory, store, std::move(units));
  }
  visits.commit();
  stage.allocate(memory, streams.compute);
  const bool exact = store.options().exact();
  // Sums are made where the gradients live.
  squares = memory.allocate(s.shard_home.gradients, Category::activations, exact ? DType::int64 : DType::fp64,
                            {!trained ? 0
                             : exact  ? 4 * store.units() + 1
                                      : store.units()},
                            "squared gradients");
  const auto of_micros = [&](const char* name) {
    return memory.allocate(MemoryKind::device, Category::activations, DType::fp64,
                           {pipeline.evaluation.shape.micros}, name);
  };
  losses = of_micros("losses"), hits = of_micros("hits");
  for (int u = 0; u < store.units(); ++u)
    speaks.push_back(pipeline.speaks(s.place.pipe, store.layout(u).name()));
  summed_late = ranks.units_summed_late(store);
  if (trained && s.config.checkpoint.behind()) {
    int64_t numel = 0;
    for (const checkpoint::Record& r : records_to_save(*this, streams.compute)) numel += r.elements.numel();
    copy = memory.allocate(s.device.is_cuda() ? MemoryKind::pinned : MemoryKind::host, Category::checkpoint,
                           DType::fp32, {numel}, "the copy of the state that is being saved");
  }
  if (s.device.is_cuda() && !memory.dry()) loan = BufferLoan(ranks.data_groups(), visits.device_buffers());
}

zero::ShardedOptimizer& RankState::optimizer() const {
  CHECK(trained, "an engine made for inference neither trains nor saves");
  return *trained;
}

std::vector<double> RankState::squares_of_units(Stream& compute) {
  optimizer().square_gradients(squares, compute);
  if (!store.options().exact()) return to_host<double>(squares, compute);
  const std::vector<int64_t> words = to_host<int64_t>(squares, compute);
  std::vector<double> sums(size_t(store.units()), std::nan(""));
  for (size_t u = 0; words.back() == 0 && u < sums.size(); ++u)
    sums[u] = square_of(std::span(words).subspan(4 * u, 4), store.options().grid);
  return sums;
}

void RankState::show_in(Trace& trace, Stream& compute) {
  store.show_in(trace), stage.show_in(trace);
  if (trained) trained->show_in(trace, compute);
}

RankNeeds needs_of(const Settings& s, const model::Model& model, const PipelineCut& pipeline,
                   const Ranks& ranks) {
  Memory memory({}, Memory::Mode::dry, s.device);
  Streams streams(s, Stream::Mode::dry, true);
  const RankState state(s, model, pipeline, ranks, streams, memory);
  return {memory.peak(), state.trained ? state.trained->update_bytes() : zero::UpdateBytes{}};
}

}  // namespace cleave::runtime
