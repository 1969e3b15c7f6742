// Gather pool alone: whole parameters from shards, in the memory of the simultaneous visits.
#include "zero/gather_pool.h"

#include <gtest/gtest.h>

#include <deque>

#include "tests/scratch.h"

namespace cleave::zero {
namespace {

UnitSpec unit_of(const char* name, int64_t numel) {
  return {name, {{std::string(name) + ".w", {numel}, {}, true}, {std::string(name) + ".b", {2}, {}, false}}};
}

// Units of 100, 30 and 64 elements including a bias of two, sharded at a stage.
struct Pool {
  Pool(comm::Communicator& world, int stage, const StoreOptions& options, offload::ShardHome home = {})
      : shards(memory, options, compute, compute, compute), pool(memory, options, shards, compute) {
    for (const UnitSpec& spec : {unit_of("a", 98), unit_of("b", 28), unit_of("c", 62)}) {
      Sharding sharding = sharding_of_stage(stage, world, *self);
      sharding.home = home;
      units.push_back({FlatLayout(spec, sharding.optimizer_shards()), sharding});
      shards.add_unit(units.back());
    }
  }
  // Sets element i of unit u to the step's value and publishes it to all ranks.
  void publish(float step) {
    for (int u = 0; u < 3; ++u) {
      const Tensor slice = shards.next_slice(u);
      const Range mine = units[size_t(u)].slice();
      for (int64_t i = 0; i < slice.numel(); ++i) slice.as<float>()[i] = value(step, u, mine.begin + i);
      shards.publish(u, {});
    }
    shards.wait_for_published();
  }
  static float value(float step, int unit, int64_t i) { return step * 1000 + float(unit * 200 + i); }
  void expect_values(const std::vector<Tensor>& params, const std::vector<int>& visited, float step) const {
    ASSERT_EQ(params.size(), 2 * visited.size());
    for (size_t k = 0; k < visited.size(); ++k)
      for (int p = 0; p < 2; ++p) {
        const Tensor& t = params[2 * k + size_t(p)];
        const Range r = units[size_t(visited[k])].layout.range(p);
        ASSERT_EQ(t.shape(), (Shape{r.size()}));
        for (int64_t i = 0; i < t.numel(); ++i)
          ASSERT_EQ(t.as<float>()[i], value(step, visited[k], r.begin + i)) << "unit " << visited[k];
      }
  }

  std::unique_ptr<comm::Communicator> self = comm::self_communicator();
  Memory memory;
  Stream compute;
  std::deque<StoredUnit> units;
  WeightShards shards;
  GatherPool pool;
};

TEST(GatherPool, GivesEveryVisitTheWholeParametersThatWerePublishedLast) {
  const Scratch scratch;
  for (int ranks : {1, 2, 3})
    for (int stage : {0, 1, 3})
      for (const MemoryKind home : {MemoryKind::device, MemoryKind::host, MemoryKind::disk})
        for (int prefetch : {0, 1, 2})
          comm::run_ranks(ranks, [&](comm::Communicator& world) {
            if (home != MemoryKind::device && stage != 3) return;
            StoreOptions options{.prefetch_visits = prefetch};
            options.disk = {.folder = scratch.folder(), .buffers = 2, .options = {}};
            offload::ShardHome where;
            where.parameters = home;
            Pool p(world, stage, options, where);
            const std::vector<Visit> visits{{{2}}, {{2}}, {{0}}, {{1, 2}}, {{0, 1}}};
            const int pass = p.pool.add_pass(visits);
            p.pool.commit(), p.shards.commit();
            for (float step : {1.0f, 2.0f}) {
              p.publish(step);
              p.shards.begin_step();
              p.pool.begin_pass(pass);
              for (size_t v = 0; v < visits.size(); ++v) {
                p.expect_values(p.pool.acquire(int(v)), visits[v].units, step);
                p.pool.finish();
              }
              p.shards.synchronize_disk();
              p.shards.end_step();
              for (int u = 0; u < 3; ++u)
                EXPECT_EQ(p.shards.settled_slice(u).as<float>()[0],
                          Pool::value(step, u, p.units[size_t(u)].slice().begin));
            }
          });
}

TEST(GatherPool, ReturnsNothingForVisitsWithoutParameters) {
  comm::run_ranks(2, [&](comm::Communicator& world) {
    Pool p(world, 3, {});
    const int pass = p.pool.add_pass({{{0, 1}, true, false}});
    p.pool.commit(), p.shards.commit();
    p.pool.begin_pass(pass);
    EXPECT_TRUE(p.pool.acquire(0).empty());
    EXPECT_EQ(p.memory.live().total(Category::gathered), 0);
    EXPECT_EQ(world.bytes()[comm::Collective::all_gather], 0);
  });
}

// Units of 100, 30 and 64 elements, visited in this order: one at a time, with the next, and with the next up
// to a limit of elements. Ranges begin at multiples of 64.
TEST(GatherPool, TakesTheMemoryOfTheUnitsThatAreThereAtATime) {
  struct Case {
    int prefetch;
    int64_t live;
    int64_t elements;
  };
  for (const Case& c : {Case{0, comm::Call::kWhole, 100},
                        {1, comm::Call::kWhole, 158},
                        {1, 129, 128},
                        {1, 130, 158},
                        {2, comm::Call::kWhole, 256}})
    comm::run_ranks(2, [&](comm::Communicator& world) {
      Pool p(world, 3, {.prefetch_visits = c.prefetch, .live_numel = c.live});
      p.pool.add_pass({{{0}}, {{1}}, {{2}}});
      p.pool.commit(), p.shards.commit();
      EXPECT_EQ(p.memory.live().total(Category::gathered), 4 * c.elements) << c.prefetch << " " << c.live;
    });
}

TEST(GatherPool, GathersAUnitOfNeighbouringVisitsOnce) {
  comm::run_ranks(2, [&](comm::Communicator& world) {
    Pool p(world, 3, {.prefetch_visits = 0});
    const int pass = p.pool.add_pass({{{0}}, {{0}}, {{1}}, {{0}}});
    p.pool.commit(), p.shards.commit();
    p.pool.begin_pass(pass);
    for (int v = 0; v < 4; ++v) p.pool.acquire(v), p.pool.finish();
    EXPECT_EQ(world.bytes()[comm::Collective::all_gather], 4 * (50 + 15 + 50));
  });
}

}  // namespace
}  // namespace cleave::zero
