// Buckets alone, and stores with separate groups of ranks for each unit.
#include "zero/gradient_buckets.h"

#include <gtest/gtest.h>

#include <deque>

#include "tests/scratch.h"
#include "zero/planned_visits.h"

namespace cleave::zero {
namespace {

UnitSpec bucket_unit(const char* name, int64_t numel) {
  return {name, {{std::string(name) + ".w", {numel}, {}, true}}};
}

// Gradient of rank r of the world; a sum of a few is exact, also in bf16.
float gradient(int rank, int unit, int64_t i) { return float((rank + 1) * (1 + unit) + int(i % 5)); }

// Pairs of ranks 0 and 1, 2 and 3.
std::unique_ptr<comm::Communicator> pair_of(comm::Communicator& world) {
  return world.split({world.rank() / 2, world.rank() % 2, 2}, "pair");
}

// Unit 0 is summed over all ranks, unit 1 over this rank's pair, unit 2 over no other rank.
struct Buckets {
  Buckets(comm::Communicator& world, int stage, const StoreOptions& options, MemoryKind home)
      : pair(pair_of(world)),
        shards(memory, options, compute, compute),
        buckets(memory, options, shards, compute, compute) {
    int64_t numel = 70;
    for (comm::Communicator* group : {&world, pair.get(), self.get()}) {
      Sharding sharding = sharding_of_stage(stage, *group, *self);
      sharding.home.gradients = home;
      units.push_back({FlatLayout(bucket_unit("u", numel), sharding.optimizer_shards()), sharding});
      shards.add_unit(units.back());
      numel -= 20;
    }
    pass = buckets.add_pass({{{0, 1, 2}, true}});
    buckets.commit();
  }
  void step(int rank, int micros) {
    shards.begin_step(1);
    buckets.begin_step(nullptr);
    for (int micro = 0; micro < micros; ++micro) {
      buckets.begin_pass(pass, micro + 1 == micros);
      std::vector<GradientSlot> slots = buckets.slots(0);
      for (int u = 0; u < 3; ++u) {
        const bool add = std::exchange(*slots[size_t(u)].written, true);
        const Tensor& t = slots[size_t(u)].tensor;
        for (int64_t i = 0; i < t.numel(); ++i) set(t, i, (add ? get(t, i) : 0) + gradient(rank, u, i));
      }
      buckets.finish(0);
    }
    buckets.end_step();
  }
  static float get(const Tensor& t, int64_t i) {
    return t.dtype() == DType::fp32 ? t.as<float>()[i] : to_float(t.as<bf16>()[i]);
  }
  static void set(const Tensor& t, int64_t i, float x) {
    if (t.dtype() == DType::fp32)
      t.as<float>()[i] = x;
    else
      t.as<bf16>()[i] = from_float<bf16>(x);
  }

  std::unique_ptr<comm::Communicator> self = comm::self_communicator(), pair;
  Memory memory;
  Stream compute;
  std::deque<StoredUnit> units;
  GradientShards shards;
  GradientBuckets buckets;
  int pass = 0;
};

TEST(GradientBuckets, SumEveryUnitOverTheRanksOfItsOwnPlan) {
  for (int stage : {0, 1, 2, 3})
    for (const MemoryKind home : {MemoryKind::device, MemoryKind::host})
      for (const DType wire : {DType::fp32, DType::bf16})
        for (int micros : {1, 3})
          comm::run_ranks(4, [&](comm::Communicator& world) {
            Buckets b(world, stage, {.wire = wire, .overlap = false}, home);
            for (int step = 0; step < 2; ++step) b.step(world.rank(), micros);
            const int pair = world.rank() / 2 * 2;
            const std::vector<int> ranks[] = {{0, 1, 2, 3}, {pair, pair + 1}, {world.rank()}};
            for (int u = 0; u < 3; ++u) {
              const Tensor slice = b.shards.slice(u);
              const Range mine = b.units[size_t(u)].slice();
              ASSERT_EQ(slice.numel(), mine.size());
              for (int64_t i = mine.begin; i < std::min(mine.end, b.units[size_t(u)].layout.used_numel());
                   ++i) {
                float want = 0;
                for (const int r : ranks[u]) want += float(micros) * gradient(r, u, i);
                ASSERT_EQ(Buckets::get(slice, i - mine.begin), want)
                    << "unit " << u << " stage " << stage << " wire " << name_of(wire);
              }
            }
          });
}

// A unit of one rank sends nothing, so a narrow wire does not round it, although it shares the block of
// buckets with a unit that is sent.
TEST(GradientBuckets, RoundToTheWireOnlyWhatTravels) {
  comm::run_ranks(4, [&](comm::Communicator& world) {
    Buckets b(world, 2, {.wire = DType::bf16, .overlap = false}, MemoryKind::host);
    b.shards.begin_step(1), b.buckets.begin_step(nullptr);
    b.buckets.begin_pass(b.pass, true);
    std::vector<GradientSlot> slots = b.buckets.slots(0);
    EXPECT_EQ(slots[0].tensor.dtype(), DType::bf16);
    EXPECT_EQ(slots[2].tensor.dtype(), DType::fp32);
    for (GradientSlot& slot : slots) {
      *slot.written = true;
      for (int64_t i = 0; i < slot.tensor.numel(); ++i) Buckets::set(slot.tensor, i, 1.0009765625f);
    }
    b.buckets.finish(0), b.buckets.end_step();
    EXPECT_EQ(Buckets::get(b.shards.slice(0), 0), 4);
    EXPECT_EQ(Buckets::get(b.shards.slice(2), 0), 1.0009765625f);
  });
}

TEST(GradientBuckets, RejectAUnitWithAnotherHomeOfGradients) {
  const auto self = comm::self_communicator();
  Memory memory;
  Stream stream;
  GradientShards shards(memory, {}, stream, stream);
  Sharding here = sharding_of_stage(2, *self, *self), away = here;
  away.home.gradients = MemoryKind::host;
  const StoredUnit a{FlatLayout(bucket_unit("a", 4), 1), here}, b{FlatLayout(bucket_unit("b", 4), 1), away};
  shards.add_unit(a);
  expect_error(Exit::internal, {"unit b", "one home"}, [&] { shards.add_unit(b); });
}

// Partial sums of a store: each unit over its own ranks, and sums of no unit over all ranks.
TEST(ParameterStore, AddsUpSumsOfEveryUnitOverTheRanksOfItsOwnPlan) {
  for (int stage : {0, 1, 2, 3})
    for (const bool wide_first : {true, false})
      comm::run_ranks(4, [&](comm::Communicator& world) {
        const auto self = comm::self_communicator(), pair = pair_of(world);
        Memory memory;
        Stream stream;
        ParameterStore store(memory, {}, stream, stream);
        const int begin = world.rank() / 2 * 2;
        std::vector<comm::Communicator*> groups{&world, &world, pair.get()};
        if (!wide_first) std::reverse(groups.begin(), groups.end());
        for (comm::Communicator* g : groups)
          store.add_unit(bucket_unit("u", 8), sharding_of_stage(stage, *g, *self));
        // Two sums of units 0 and 1, one of unit 2, and one of none.
        std::vector<double> sums(6);
        for (size_t i = 0; i < sums.size(); ++i) sums[i] = double(world.rank() + 1) * double(i + 1);
        const std::vector<int64_t> ends{2, 4, 5};
        store.sum_over_slices(Tensor(sums.data(), DType::fp64, {6}, MemoryKind::host), ends, "test", true);
        const double all = 1 + 2 + 3 + 4, two = double(begin + 1 + begin + 2);
        for (size_t i = 0; i < sums.size(); ++i) {
          const size_t unit = i < 2 ? 0 : i < 4 ? 1 : 2;
          EXPECT_EQ(sums[i], double(i + 1) * (i == 5 || groups[unit] == &world ? all : two)) << i;
        }
      });
}

}  // namespace
}  // namespace cleave::zero
