// Gathers alone: received values, sent bytes, and staging memory.
#include "zero/weight_crossing.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/scratch.h"

namespace cleave::zero {
namespace {

constexpr int64_t kOfUnit = 2003, kBlock = 256;

float value(int64_t i) { return float(std::sin(double(i) * 0.7) * double(1 + i % 11)); }

float get(const Tensor& t, int64_t i) {
  return t.dtype() == DType::fp32 ? t.as<float>()[i] : to_float(t.as<bf16>()[i]);
}
void set(const Tensor& t, int64_t i, float x) {
  if (t.dtype() == DType::fp32)
    t.as<float>()[i] = x;
  else
    t.as<bf16>()[i] = from_float<bf16>(x);
}

// Returns a rank's shard after rounding in blocks of bytes, in double precision. A quotient and a product of
// two floats computed in double precision and then rounded equal those of fp32.
std::vector<double> rounded_in_blocks(const std::vector<float>& shard) {
  std::vector<double> out;
  for (size_t begin = 0; begin < shard.size(); begin += size_t(kBlock)) {
    const size_t end = std::min(shard.size(), begin + size_t(kBlock));
    double largest = 0;
    for (size_t i = begin; i < end; ++i) largest = std::max(largest, std::fabs(double(shard[i])));
    const auto scale = double(float(largest / 127));
    for (size_t i = begin; i < end; ++i)
      out.push_back(scale == 0 ? 0 : std::nearbyint(double(float(double(shard[i]) / scale))) * scale);
  }
  return out;
}

// One unit at stage 3, and this rank's shard of it.
struct Gather {
  Gather(comm::Communicator& world, const StoreOptions& options)
      : unit{FlatLayout({"u", {{"u.w", {kOfUnit}, {}, true}}}, world.size()),
             sharding_of_stage(3, world, *self)},
        crossing(memory, options, stream),
        whole(memory.allocate(MemoryKind::device, Category::weights, options.weights, {unit.layout.numel()},
                              "whole")),
        shard(memory.allocate(MemoryKind::device, Category::weights, options.weights, {unit.shard_numel()},
                              "shard")) {
    crossing.add_unit(unit);
    crossing.commit();
    for (int64_t i = 0; i < shard.tensor().numel(); ++i)
      set(shard, i, value(world.rank() * unit.shard_numel() + i));
  }
  std::vector<float> of_rank(int rank) const {  // values of that rank, in the weights' type
    const int64_t n = unit.shard_numel();
    std::vector<float> values;
    for (int64_t i = rank * n; i < (rank + 1) * n; ++i)
      values.push_back(whole.tensor().dtype() == DType::fp32 ? value(i)
                                                             : to_float(from_float<bf16>(value(i))));
    return values;
  }

  std::unique_ptr<comm::Communicator> self = comm::self_communicator();
  Memory memory;
  Stream stream;
  StoredUnit unit;
  WeightCrossing crossing;
  Buffer whole, shard;
};

TEST(WeightCrossing, OfBytesGivesEveryRankTheSameMultiplesOfEachBlocksScale) {
  for (const int ranks : {2, 3, 4})
    for (const DType type : {DType::fp32, DType::bf16})
      for (const bool in_place : {false, true})
        for (const int64_t at_a_time : {int64_t{100}, comm::Call::kWhole})
          comm::run_ranks(ranks, [&](comm::Communicator& world) {
            Gather g(world, {.weights = type, .gather_numel = at_a_time, .gathers_int8 = true});
            const int64_t n = g.unit.shard_numel();
            const Tensor place = g.whole.tensor().slice(Range{0, n}.shifted(world.rank() * n));
            for (int64_t i = 0; in_place && i < n; ++i) set(place, i, get(g.shard, i));
            g.crossing.gather(g.unit, g.whole, in_place ? place : g.shard.tensor());
            for (int r = 0; r < ranks; ++r) {
              const std::vector<double> want = rounded_in_blocks(g.of_rank(r));
              for (int64_t i = 0; i < n; ++i) {
                const auto once = float(want[size_t(i)]);
                ASSERT_EQ(get(g.whole, r * n + i),
                          type == DType::fp32 ? once : to_float(from_float<bf16>(once)))
                    << "element " << i << " of rank " << r << " on " << world.rank();
              }
            }
          });
}

TEST(WeightCrossing, OfBytesSendsAByteAnElementAndAScaleForEveryBlock) {
  for (const int ranks : {2, 4})
    comm::run_ranks(ranks, [&](comm::Communicator& world) {
      Gather g(world, {.gathers_int8 = true});
      const int64_t n = g.unit.shard_numel(), blocks = (n + kBlock - 1) / kBlock;
      const int64_t each = (n + 15) / 16 * 16 + (4 * blocks + 15) / 16 * 16;
      EXPECT_EQ(g.memory.live().total(Category::gathered), ranks * each);
      const int64_t before = world.bytes()[comm::Collective::all_gather];
      g.crossing.gather(g.unit, g.whole, g.shard);
      EXPECT_EQ(world.bytes()[comm::Collective::all_gather] - before, (ranks - 1) * each);
      EXPECT_LT(each, 4 * n * 27 / 100);
    });
}

// Updated slices are not rounded, unlike gathers for a use.
TEST(WeightCrossing, PublishesSlicesAsTheyAre) {
  comm::run_ranks(4, [&](comm::Communicator& world) {
    Memory memory;
    Stream stream;
    const auto self = comm::self_communicator(),
               near = world.split({world.rank() / 2, world.rank() % 2, 2}, "near"),
               across = world.split({world.rank() % 2, world.rank() / 2, 2}, "across");
    const StoredUnit unit{FlatLayout({"u", {{"u.w", {kOfUnit}, {}, true}}}, world.size()),
                          nested_sharding({near.get(), across.get()}, *self)};
    WeightCrossing crossing(memory, {.gathers_int8 = true}, stream);
    crossing.add_unit(unit);
    crossing.commit();
    const int64_t n = unit.slice_numel();
    std::vector<float> memory_of_shard(size_t(2 * n), -1);
    const Tensor shard(memory_of_shard.data(), DType::fp32, {2 * n});
    const Tensor slice = shard.slice(unit.slice_of_shard());
    // Depends on the place in the shard and the near rank that holds it.
    const auto value_at = [&](int64_t i) { return value(i) + float(near->rank()); };
    for (int64_t i = 0; i < n; ++i) slice.as<float>()[i] = value_at(unit.slice_of_shard().begin + i);
    crossing.publish(unit, shard, slice);
    for (int64_t i = 0; i < 2 * n; ++i) ASSERT_EQ(shard.as<float>()[i], value_at(i)) << i;
    EXPECT_EQ(across->bytes()[comm::Collective::all_gather], 4 * n);
    EXPECT_EQ(near->bytes()[comm::Collective::all_gather], 0);
  });
}

TEST(WeightCrossing, OfWeightsAsTheyAreTakesNoMemoryAndChangesNothing) {
  comm::run_ranks(3, [&](comm::Communicator& world) {
    Gather g(world, {});
    EXPECT_EQ(g.memory.live().total(Category::gathered), 0);
    g.crossing.gather(g.unit, g.whole, g.shard);
    for (int64_t i = 0; i < g.unit.layout.numel(); ++i) ASSERT_EQ(get(g.whole, i), value(i));
  });
}

}  // namespace
}  // namespace cleave::zero
