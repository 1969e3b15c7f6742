#include "zero/planned_visits.h"

#include <gtest/gtest.h>

namespace cleave::zero {
namespace {

std::vector<UnitSpec> two_units() {
  return {{"a", {{"a.w", {37}, {}, true}, {"a.b", {5}, {}, false}}},
          {"b", {{"b.w", {3}, {}, true}, {"b.unused", {4}, {}, false}}}};
}

// Gradient as a known function of rank, micro-batch and element: small integers, so that every sum is exact.
float gradient(int rank, int micro, int unit, int64_t i) {
  return float((rank + 1) * (micro + 2) + unit * 3 + int(i % 7));
}

struct Result {
  std::vector<std::vector<float>> reduced;  // by unit, this rank's slice
  std::vector<Range> slices;
  MemoryTable memory;
  comm::CommBytes bytes;
};

struct Case {
  int stage = 0, micros = 1;
  bool overlap = false;
  int64_t chunk = comm::Call::kWhole;
  offload::ShardHome home = {};
  bool apart = false;  // unit b's last visit is the one before unit a's
};

void write_gradients(PlannedVisits& planned, const std::vector<int>& units, int visit, int rank, int micro) {
  const ParameterStore& store = planned.store();
  auto slots = planned.gradients(visit);
  size_t s = 0;
  for (int u : units)
    for (int p = 0; p < store.layout(u).params(); ++p, ++s) {
      if (store.layout(u).param(p).name == "b.unused") continue;
      const bool add = std::exchange(*slots[s].written, true);
      auto values = slots[s].tensor.span<float>();
      for (size_t i = 0; i < values.size(); ++i)
        values[i] = (add ? values[i] : 0) + gradient(rank, micro, u, int64_t(i));
    }
}

// Records notifications, and the first element of the gradient as later work sees it.
struct Listener final : GradientUser {
  ParameterStore* store = nullptr;
  int visit = 0, micro = 0;
  std::vector<int> expected;
  struct Told {
    int unit, visit, micro;
    float first;
  };
  std::vector<Told> told;
  void expect(std::span<const int> units) override { expected.assign(units.begin(), units.end()); }
  void complete(int unit) override {
    told.push_back({unit, visit, micro, store->gradient_slice(unit).span<float>()[0]});
  }
};

// Two layers that both use unit b; its second parameter is never written.
Result run(comm::Communicator& world, const Case& c, Listener* listener = nullptr) {
  const auto self = comm::self_communicator();
  Memory memory;
  Stream compute, worker(Stream::Mode::worker);
  Stream& comm = c.overlap ? worker : compute;
  ParameterStore store(
      memory,
      {.reduce_numel = c.chunk, .gather_numel = c.chunk, .prefetch_visits = c.overlap, .overlap = c.overlap},
      compute, comm);
  PlannedVisits planned(memory, store, compute, comm);
  for (const UnitSpec& u : two_units()) {
    Sharding sharding = sharding_of_stage(c.stage, world, *self);
    sharding.home = c.home;
    store.add_unit(u, sharding);
  }
  const std::vector<Visit> visits{
      {{0, 1}, false}, {{1}, true}, {c.apart ? std::vector{0} : std::vector{0, 1}, true}};
  const int pass = planned.add_pass(visits);
  planned.commit();
  if (listener) listener->store = &store;
  planned.begin_step(1, listener);
  for (int micro = 0; micro < c.micros; ++micro) {
    planned.begin_pass(pass, micro + 1 == c.micros);
    for (int visit = 0; visit < 3; ++visit) {
      if (listener) listener->visit = visit, listener->micro = micro;
      planned.acquire(visit);
      if (visit > 0) write_gradients(planned, visits[size_t(visit)].units, visit, world.rank(), micro);
      planned.finish(visit);
    }
  }
  planned.end_step();
  compute.synchronize(), comm.synchronize();
  Result r;
  for (int u = 0; u < 2; ++u) {
    const auto values = store.gradient_slice(u).span<float>();
    r.reduced.emplace_back(values.begin(), values.end());
    r.slices.push_back(store.slice(u));
  }
  r.memory = memory.live(), r.bytes = world.bytes();
  return r;
}

// The sum over ranks and micro-batches in double, by flat index. Unit b is written twice per pass.
std::vector<double> expected(const FlatLayout& layout, int unit, int ranks, int micros) {
  std::vector<double> sum(size_t(layout.numel()), 0.0);
  for (int p = 0; p < layout.params(); ++p) {
    if (layout.param(p).name == "b.unused") continue;
    for (int64_t i = 0; i < layout.param(p).numel(); ++i)
      for (int rank = 0; rank < ranks; ++rank)
        for (int micro = 0; micro < micros; ++micro)
          sum[size_t(layout.range(p).begin + i)] +=
              (unit == 1 ? 2 : 1) * double(gradient(rank, micro, unit, i));
  }
  return sum;
}

void expect_exact_sums(comm::Communicator& world, const Case& c) {
  const Result r = run(world, c);
  for (int u = 0; u < 2; ++u) {
    const FlatLayout layout(two_units()[size_t(u)], c.stage == 0 ? 1 : world.size());
    const auto want = expected(layout, u, world.size(), c.micros);
    const Range slice = r.slices[size_t(u)];
    for (int64_t i = 0; i < slice.size(); ++i)
      ASSERT_EQ(r.reduced[size_t(u)][size_t(i)], want[size_t(slice.begin + i)])
          << "stage " << c.stage << " ranks " << world.size() << " micros " << c.micros << " unit " << u
          << " at " << i;
  }
}

TEST(ParameterStore, ReducesEveryGradientExactlyOnceAtEveryStage) {
  for (int ranks : {1, 2, 3, 5})
    for (int stage : {0, 1, 2, 3})
      for (int micros : {1, 3})
        for (bool overlap : {false, true})
          for (int64_t chunk : {int64_t{1}, int64_t{10}, comm::Call::kWhole})
            comm::run_ranks(ranks, [&](comm::Communicator& world) {
              expect_exact_sums(world, {stage, micros, overlap, chunk});
            });
}

TEST(ParameterStore, ReducesEveryGradientExactlyOnceIntoEveryHome) {
  for (int ranks : {1, 2, 3})
    for (int stage : {0, 1, 2, 3})
      for (int micros : {1, 3})
        for (MemoryKind home : {MemoryKind::pinned, MemoryKind::host})
          comm::run_ranks(ranks, [&](comm::Communicator& world) {
            expect_exact_sums(world, {stage, micros, true, 10, {.gradients = home}});
          });
}

TEST(ParameterStore, ReportsEachUnitOnceAsItsGradientIsFinal) {
  for (int ranks : {1, 2, 3})
    for (int stage : {0, 1, 2, 3})
      for (bool overlap : {false, true})
        for (const auto home : {MemoryKind::device, MemoryKind::pinned})
          comm::run_ranks(ranks, [&](comm::Communicator& world) {
            Listener l;
            const Result r = run(world,
                                 {.stage = stage,
                                  .micros = 2,
                                  .overlap = overlap,
                                  .home = {.gradients = stage < 2 ? MemoryKind::device : home},
                                  .apart = true},
                                 &l);
            EXPECT_EQ(l.expected, (std::vector{1, 0}));
            ASSERT_EQ(l.told.size(), 2u);
            for (size_t i = 0; i < 2; ++i) {
              EXPECT_EQ(l.told[i].unit, l.expected[i]);
              EXPECT_EQ(l.told[i].micro, 1);
              EXPECT_EQ(l.told[i].first, r.reduced[size_t(l.told[i].unit)][0]);
            }
            EXPECT_EQ(l.told[0].visit, overlap ? 2 : 1);  // after its reduction, before that of the last
                                                          // visit
          });
}

TEST(ParameterStore, KeepsWeightsAndGradientsInTheirHomes) {
  for (int ranks : {1, 2, 3})
    for (int stage : {0, 1, 2, 3})
      comm::run_ranks(ranks, [&](comm::Communicator& world) {
        const MemoryTable near = run(world, {.stage = stage}).memory;
        const MemoryTable far =
            run(world,
                {.stage = stage, .home = {.parameters = MemoryKind::pinned, .gradients = MemoryKind::host}})
                .memory;
        const auto device = MemoryKind::device;
        EXPECT_EQ(far.at(device, Category::weights), 0);
        EXPECT_EQ(far.at(device, Category::gradients), 0);
        EXPECT_EQ(far.at(MemoryKind::pinned, Category::weights), near.at(device, Category::weights));
        EXPECT_EQ(far.at(MemoryKind::host, Category::gradients), near.at(device, Category::gradients));
        EXPECT_GT(far.at(device, Category::gathered), 0);
        EXPECT_GT(far.at(device, Category::buckets), 0);
      });
}

TEST(ParameterStore, KeepsWeightsAndGradientsAsTheZeroFormulaSays) {
  for (int ranks : {1, 2, 3, 4, 5})
    for (int stage : {0, 1, 2, 3})
      comm::run_ranks(ranks, [&](comm::Communicator& world) {
        const Result r = run(world, {.stage = stage});
        int64_t padded = 0;
        for (const UnitSpec& u : two_units()) padded += FlatLayout(u, stage == 0 ? 1 : ranks).numel();
        EXPECT_EQ(r.memory.at(MemoryKind::device, Category::weights), 4 * padded / (stage == 3 ? ranks : 1));
        EXPECT_EQ(r.memory.at(MemoryKind::device, Category::gradients),
                  4 * padded / (stage >= 2 ? ranks : 1));
      });
}

TEST(ParameterStore, SendsAsManyBytesAsTheZeroFormulaSays) {
  for (int ranks : {2, 3, 4})
    for (int stage : {0, 1, 2, 3})
      for (int micros : {1, 2})
        comm::run_ranks(ranks, [&](comm::Communicator& world) {
          const Result r = run(world, {stage, micros, true, 10});
          int64_t shards = 0, all_reduce = 0;
          for (const UnitSpec& u : two_units()) {
            const FlatLayout layout(u, stage == 0 ? 1 : ranks);
            shards += layout.numel() / ranks * 4 * (ranks - 1);
            const int64_t mine = part(layout.numel(), ranks, world.rank()).size();
            all_reduce += 4 * (layout.numel() - mine + mine * (ranks - 1));
          }
          EXPECT_EQ(r.bytes[comm::Collective::reduce_scatter],
                    stage == 0 ? 0 : shards * (stage >= 2 ? micros : 1));
          EXPECT_EQ(r.bytes[comm::Collective::all_reduce], stage == 0 ? all_reduce : 0);
          // Visit 0 gathers both units, visit 1 still has unit b, and visit 2 has to fetch unit a again.
          const int64_t a = FlatLayout(two_units()[0], ranks).numel() / ranks * 4 * (ranks - 1);
          EXPECT_EQ(r.bytes[comm::Collective::all_gather], stage == 3 ? micros * (shards + a) : 0);
        });
}

// A frozen unit between two others: gathered for them, but not part of the backward.
TEST(ParameterStore, NeitherKeepsNorSendsNorCompletesGradientsOfFrozenUnits) {
  for (int stage : {0, 1, 2, 3})
    comm::run_ranks(3, [&](comm::Communicator& world) {
      const auto self = comm::self_communicator();
      Memory memory;
      Stream stream;
      ParameterStore store(memory, {}, stream, stream);
      PlannedVisits planned(memory, store, stream, stream);
      std::vector<UnitSpec> units = two_units();
      units.push_back({"held", {{"held.w", {30}, {}, true}, {"held.b", {6}, {}, false}}, true});
      std::swap(units[1], units[2]);
      for (const UnitSpec& u : units) store.add_unit(u, sharding_of_stage(stage, world, *self));
      const int pass = planned.add_pass({{{0, 1, 2}, false}, {{0, 1, 2}, true}});
      planned.commit();
      Listener listener;
      listener.store = &store;
      planned.begin_step(1, &listener);
      planned.begin_pass(pass, true);
      EXPECT_EQ(listener.expected, (std::vector<int>{0, 2}));
      for (int visit : {0, 1}) {
        EXPECT_EQ(planned.acquire(visit).size(), 6u);
        if (visit == 1) {
          const std::vector<GradientSlot> slots = planned.gradients(visit);
          ASSERT_EQ(slots.size(), 6u);
          for (size_t i = 0; i < slots.size(); ++i) {
            EXPECT_EQ(slots[i].written == nullptr, i == 2 || i == 3) << i;
            EXPECT_EQ(slots[i].tensor.defined(), i != 2 && i != 3) << i;
          }
        }
        planned.finish(visit);
      }
      planned.end_step();
      EXPECT_EQ(store.gradient_slice(1).numel(), 0);
      ASSERT_EQ(listener.told.size(), 2u);
      EXPECT_EQ(listener.told[1].unit, 2);
      int64_t trained = 0;
      for (size_t u : {0, 2}) trained += FlatLayout(units[u], stage == 0 ? 1 : 3).numel();
      EXPECT_EQ(memory.live().total(Category::gradients), 4 * trained / (stage >= 2 ? 3 : 1));
      EXPECT_EQ(world.bytes()[comm::Collective::reduce_scatter], stage == 0 ? 0 : trained / 3 * 4 * 2);
    });
}

// The norm then adds the same terms at every stage. Shards of large units are padded to 64 elements.
TEST(ParameterStore, CountsTheSamePiecesAtEveryStage) {
  constexpr int kRanks = 3;
  std::vector<std::vector<Range>> at_stage_2(kRanks);
  for (int stage : {2, 0, 1, 3})
    comm::run_ranks(kRanks, [&](comm::Communicator& world) {
      const auto self = comm::self_communicator();
      Memory memory({}, Memory::Mode::dry);
      Stream stream(Stream::Mode::discard);
      ParameterStore store(memory, {}, stream, stream);
      std::vector<Range> pieces;
      for (int64_t numel : {10, 12'280, 12'289, 50'000}) {
        const int u = store.add_unit({fmt::format("u{}", numel), {{"w", {numel}, {}, true}}},
                                     sharding_of_stage(stage, world, *self));
        for (const Range& r : store.counted(u))
          pieces.push_back(intersect(r.shifted(store.slice(u).begin), {0, numel}));
      }
      if (stage == 2) at_stage_2[size_t(world.rank())] = pieces;
      EXPECT_EQ(pieces, at_stage_2[size_t(world.rank())]) << "stage " << stage;
    });
  for (size_t u = 0; u < at_stage_2[0].size(); ++u)
    for (int r = 1; r < kRanks; ++r)
      EXPECT_EQ(at_stage_2[size_t(r)][u].begin, at_stage_2[size_t(r) - 1][u].end);
}

}  // namespace
}  // namespace cleave::zero
