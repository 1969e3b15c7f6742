#include "runtime/step/rank_state.h"

#include <cmath>
#include <numeric>

#include "device/copy.h"

namespace cleave::runtime {
namespace {

Stream::Mode mode_of(bool dry, Stream::Mode otherwise) { return dry ? Stream::Mode::dry : otherwise; }

// Returns the mode of an additional stream: a thread if it is used.
Stream::Mode beside(bool used) { return used ? Stream::Mode::worker : Stream::Mode::inline_; }

}  // namespace

Streams::Streams(const Settings& s, Stream::Mode otherwise, bool dry)
    : comm_overlaps(s.comm_overlaps),
      rows_overlap(s.rows_overlap),
      homes_overlap(s.homes_overlap),
      compute(s.cuda_stream && !dry ? Stream(Stream::Foreign{s.device, *s.cuda_stream})
                                    : Stream(dry ? Device{} : s.device, mode_of(dry, otherwise))),
      overlapped(dry ? Device{} : s.device, mode_of(dry, beside(comm_overlaps)), Stream::Turn::first),
      rows(dry || !rows_overlap ? Device{} : s.device, mode_of(dry, beside(rows_overlap)),
           Stream::Turn::first),
      inward(dry || !homes_overlap ? Device{} : s.device, mode_of(dry, beside(homes_overlap)),
             Stream::Turn::first) {
  if (s.tf32) compute.allow_tf32();
  if (s.any_order) compute.allow_any_order();
  if (s.measures_products) compute.measure_choices();
}

void Streams::name_in(Trace& trace) const {
  trace.name(compute, "compute");
  if (comm_overlaps) trace.name(overlapped, "communication");
  if (rows_overlap) trace.name(rows, "tensor axis");
  if (homes_overlap) trace.name(inward, "from home");
}

Workspaces::Workspaces(Memory& memory, Streams& streams, bool has_products)
    : compute(allocate_workspace(memory, has_products ? kKernelScratch : kUpdateScratch)),
      comm(streams.comm_overlaps ? allocate_workspace(memory, kCopyScratch) : Workspace{}),
      rows(streams.rows_overlap ? allocate_workspace(memory, kCopyScratch) : Workspace{}) {
  compute.lend_to(streams.compute);
  if (streams.comm_overlaps) comm.lend_to(streams.overlapped);
  if (streams.rows_overlap) rows.lend_to(streams.rows);
}

RankState::RankState(const Settings& s, const RankUnits& of, const Ranks& ranks, Streams& streams,
                     Memory& memory)
    : units(of),
      pipe_rank(s.place.pipe),
      spaces(memory, streams, s.has_products),
      store(memory, store_options(s, units), streams.compute, streams.comm(), streams.from_home()) {
  ShardingRule sharding_of(s, ranks);
  for (const int u : units.held) store.add_unit(units.all[size_t(u)], sharding_of(units.all[size_t(u)]));
  if (s.trains) {
    auto owned = std::make_unique<zero::ShardedOptimizer>(memory, store, make_optimizer(s), s.state_home,
                                                          ranks.cutting());
    trained = owned.get(), saved = std::move(owned);
  } else {
    std::vector<int> all(size_t(store.units()));
    std::iota(all.begin(), all.end(), 0);
    saved = std::make_unique<zero::WeightLoader>(memory, store, std::move(all));
  }
  // Allocate the sums in the memory of the gradients.
  int64_t parts = 0;
  for (int u = 0; u < store.units(); ++u) parts += int64_t(store.counted(u).size());
  const zero::GradientForm& form = store.gradient_form();
  squares = memory.allocate(s.shard_home.gradients, Category::activations, form.type_of_squares(),
                            {trained ? form.squares_numel(parts) : 0}, "squared gradients");
  summed_late = ranks.units_summed_late(store);
}

zero::ShardedOptimizer& RankState::optimizer() const {
  CHECK(trained, "an engine made for inference neither trains nor saves");
  return *trained;
}

std::vector<double> RankState::squared_gradients(Stream& compute) {
  optimizer().square_gradients(squares, compute);
  const std::vector<double> parts = store.gradient_form().squared_norms(squares, compute);
  // A unit shared by several stages counts on one of them.
  std::vector<double> of_model(units.all.size(), 0);
  auto part = parts.begin();
  for (int u = 0; u < store.units(); ++u) {
    const auto end = part + std::ptrdiff_t(store.counted(u).size());
    const double mine = std::accumulate(std::exchange(part, end), end, 0.0);
    if (speaks_for(u) || std::isnan(mine)) of_model[size_t(units.held[size_t(u)])] = mine;
  }
  return of_model;
}

void RankState::show_in(Trace& trace, Stream& compute) {
  store.show_in(trace);
  if (trained) trained->show_in(trace, compute);
}

}  // namespace cleave::runtime
