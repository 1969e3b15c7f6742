// ZeRO (arXiv 1910.02054) as a choice of five communicators. A gradient is summed over the data-parallel
// group exactly once, at one of three times, and a parameter is gathered at no more than two. An unused time
// gets the group of one; its collectives are free, so all stages share the same code.
//
//   stage | reduce_each_micro | reduce_each_step | reduce_replicas | gather_on_publish | gather_on_use
//     0   |       self        |       self       |      data       |       self        |     self
//     1   |       self        |       data       |      self       |       data        |     self
//     2   |       data        |       self       |      self       |       data        |     self
//     3   |       data        |       self       |      self       |       self        |     data
//
// On many nodes stage 3 can gather inside a group of near ranks only, a part of the data axis. Hybrid (MiCS,
// arXiv 2205.00119; HSDP) shards everything over the near ranks and keeps a replica in each group. Nested
// (the idea of ZeRO++'s hpZ, arXiv 2306.10209) also shards the optimizer over all ranks:
//
//   hybrid  |       near        |       self       |     across      |       self        |     near
//   nested  |       near        |      across      |      self       |      across       |     near
//
// `home` is the memory of the shards. A unit with off-device parameters is gathered even in a group of one,
// and off-device gradients use a bucket even there.
#pragma once
#include "comm/communicator.h"
#include "offload/placement.h"

namespace cleave::zero {

struct Sharding {
  comm::Communicator *reduce_each_micro, *reduce_each_step, *reduce_replicas;
  comm::Communicator *gather_on_publish, *gather_on_use;
  offload::ShardHome home = {};

  bool gathers() const { return gather_on_use->size() > 1 || home.parameters != MemoryKind::device; }
  bool buckets() const { return reduce_each_micro->size() > 1 || home.gradients != MemoryKind::device; }
  int gradient_shards() const { return reduce_each_micro->size(); }
  int optimizer_shards() const { return reduce_each_micro->size() * reduce_each_step->size(); }
  int parameter_shards() const { return gather_on_use->size(); }

  void check(int data_ranks) const {
    CHECK(optimizer_shards() * reduce_replicas->size() == data_ranks,
          "zero: gradients must cross the data group exactly once: {} x {} x {} of {} ranks",
          reduce_each_micro->size(), reduce_each_step->size(), reduce_replicas->size(), data_ranks);
    CHECK(gather_on_publish->size() * gather_on_use->size() == optimizer_shards(),
          "zero: gathers must undo the reduce-scatters: {} x {} against {}", gather_on_publish->size(),
          gather_on_use->size(), optimizer_shards());
  }
};

// The only place that maps the stage number 0 to 3 to groups. runtime/step/settings.h says which homes a
// stage allows.
inline Sharding sharding_of_stage(int stage, comm::Communicator& data, comm::Communicator& self) {
  require(0 <= stage && stage <= 3, Exit::usage, "zero_optimization.stage: must be 0, 1, 2 or 3 (got {})",
          stage);
  auto pick = [&](bool yes) { return yes ? &data : &self; };
  return {.reduce_each_micro = pick(stage >= 2),
          .reduce_each_step = pick(stage == 1),
          .reduce_replicas = pick(stage == 0),
          .gather_on_publish = pick(stage == 1 || stage == 2),
          .gather_on_use = pick(stage == 3)};
}

// Near ranks of the data axis, and the ranks with the same index among their near ranks.
struct NearGroups {
  comm::Communicator *near, *across;
};
inline Sharding hybrid_sharding(const NearGroups& g, comm::Communicator& self) {
  return {.reduce_each_micro = g.near,
          .reduce_each_step = &self,
          .reduce_replicas = g.across,
          .gather_on_publish = &self,
          .gather_on_use = g.near};
}
inline Sharding nested_sharding(const NearGroups& g, comm::Communicator& self) {
  return {.reduce_each_micro = g.near,
          .reduce_each_step = g.across,
          .reduce_replicas = &self,
          .gather_on_publish = g.across,
          .gather_on_use = g.near};
}

// Sharding of a unit with whole parameters on the device of every rank: gathered on publication, not on use.
inline Sharding with_whole_parameters(Sharding sharding, comm::Communicator& self) {
  if (sharding.gather_on_publish->size() == 1) std::swap(sharding.gather_on_publish, sharding.gather_on_use);
  CHECK(sharding.gather_on_use->size() == 1, "zero: a nested sharding cannot keep unit parameters whole");
  sharding.gather_on_use = &self;
  sharding.home.parameters = MemoryKind::device;
  return sharding;
}

}  // namespace cleave::zero
