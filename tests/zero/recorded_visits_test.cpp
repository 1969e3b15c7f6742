// Forward and backward in an unknown order: units in random orders, repeated, skipped, and different on every
// rank. Gradients are small integers, so that sums are independent of their order.
#include "zero/recorded_visits.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <random>
#include <thread>

#include "core/philox.h"
#include "tests/scratch.h"
#include "zero/planned_visits.h"

namespace cleave::zero {
namespace {

constexpr int kUnits = 6;
const std::array<int64_t, kUnits> kUnitNumel{98, 28, 62, 130, 5, 70};

UnitSpec unit_of(int u) {
  const std::string name = fmt::format("u{}", u);
  return {name, {{name + ".w", {kUnitNumel[size_t(u)]}, {}, true}, {name + ".b", {3}, {}, false}}, u == 4};
}

float weight(int step, int unit, int64_t i) { return float(1000 * step + 150 * unit + int(i)); }
float gradient_of_visit(int rank, int unit, int64_t i) { return float((rank + 1) * (unit + 2) + int(i % 5)); }

struct VisitCase {
  int ranks = 2, stage = 3;
  MemoryKind parameters = MemoryKind::device, gradients = MemoryKind::device;
  bool overlap = false, exact = false, inward = false;
  int64_t room = comm::Call::kWhole;  // for whole parameters, and for whole gradients
  int64_t prefetch = 1000;
  std::string text() const {
    return fmt::format("{} ranks, stage {}, {} and {}, overlap {}, exact {}, inward {}, room {}, prefetch {}",
                       ranks, stage, name_of(parameters), name_of(gradients), overlap, exact, inward, room,
                       prefetch);
  }
};

// State of a rank and its driver.
struct VisitingRank {
  VisitingRank(comm::Communicator& world, const VisitCase& c, const std::string& folder)
      : text(c.text()),
        rank(world.rank()),
        exact(c.exact),
        other(Stream::Mode::worker),
        inward(Stream::Mode::worker),
        store(memory, options_of(c, folder), compute, c.overlap ? other : compute,
              c.inward    ? inward
              : c.overlap ? other
                          : compute),
        rounds(world.duplicate("rounds")),
        visits(memory, store, *rounds,
               {.gathered_numel = c.room, .bucket_numel = c.room, .prefetch_numel = c.prefetch}, compute,
               c.overlap ? other : compute) {
    for (int u = 0; u < kUnits; ++u) {
      Sharding sharding = sharding_of_stage(c.stage, world, *self);
      sharding.home = {.parameters = c.parameters, .gradients = c.gradients};
      store.add_unit(unit_of(u), sharding);
    }
    visits.commit();
  }
  static StoreOptions options_of(const VisitCase& c, const std::string& folder) {
    StoreOptions o{.overlap = c.overlap};
    o.disk = {.folder = folder, .buffers = 2, .options = {}};
    if (c.exact) o.gradients = o.wire = DType::int64, o.grid = 8;
    return o;
  }
  void publish(int step) {
    for (int u = 0; u < kUnits; ++u) {
      const Tensor slice = store.next_weights_slice(u);
      compute.synchronize();
      for (int64_t i = 0; i < slice.numel(); ++i)
        slice.as<float>()[i] = weight(step, u, store.slice(u).begin + i);
      store.publish(u);
    }
    store.wait_for_weights();
  }
  // Forward or backward of a module. Results are visible immediately, as on an inline stream.
  void use(int step, int u, bool backward) {
    const std::vector<Tensor> params = visits.acquire(u);
    compute.synchronize();
    for (int p = 0; p < 2; ++p)
      for (int64_t i = 0; i < params[size_t(p)].numel(); ++i)
        ASSERT_EQ(params[size_t(p)].as<float>()[i], weight(step, u, store.layout(u).range(p).begin + i))
            << "unit " << u << ": " << text;
    if (backward) add(u);
    visits.release(u);
  }
  void add(int u) {
    std::vector<GradientSlot> slots = visits.gradients(u);
    compute.synchronize();
    // The bias is skipped: an unwritten parameter has gradient zero.
    if (slots[0].written) {
      const bool adds = std::exchange(*slots[0].written, true);
      for (int64_t i = 0; i < slots[0].tensor.numel(); ++i)
        slots[0].tensor.as<float>()[i] =
            (adds ? slots[0].tensor.as<float>()[i] : 0) + gradient_of_visit(rank, u, i);
    }
    visits.give(u);
  }
  std::vector<float> sum_of(int u) {
    compute.synchronize(), other.synchronize();
    const Tensor sum = store.gradient_slice(u);
    return {sum.as<float>(), sum.as<float>() + sum.numel()};
  }
  // Call after a step with times[r][u] gives of unit u by rank r.
  void expect_sums(const std::vector<std::vector<int>>& times) {
    compute.synchronize(), other.synchronize();
    for (int u = 0; u < kUnits; ++u) {
      const Tensor sum = store.gradient_slice(u);
      if (u == 4) continue;
      const Range weights = store.layout(u).range(0);
      for (int64_t i = 0; i < sum.numel(); ++i) {
        const int64_t at = store.slice(u).begin + i;
        double wanted = 0;
        for (size_t r = 0; r < times.size() && at < weights.end; ++r)
          wanted += times[r][size_t(u)] * double(gradient_of_visit(int(r), u, at));
        const double got = exact ? std::ldexp(double(sum.as<int64_t>()[i]), -8) : sum.as<float>()[i];
        ASSERT_EQ(got, wanted) << "unit " << u << ", element " << at << ": " << text;
      }
    }
  }

  std::string text;
  int rank;
  bool exact;
  std::unique_ptr<comm::Communicator> self = comm::self_communicator();
  Memory memory;
  Stream compute, other, inward;
  ParameterStore store;
  std::unique_ptr<comm::Communicator> rounds;
  RecordedVisits visits;
};

std::vector<VisitCase> cases() {
  std::vector<VisitCase> all;
  for (int ranks : {1, 2, 3})
    for (int stage : {0, 1, 2, 3})
      for (const MemoryKind home : {MemoryKind::device, MemoryKind::host})
        for (const bool overlap : {false, true})
          all.push_back({.ranks = ranks, .stage = stage, .gradients = home, .overlap = overlap});
  for (const bool overlap : {false, true}) {
    for (const int64_t prefetch : {0, 100}) {
      all.push_back({.ranks = 3, .overlap = overlap, .prefetch = prefetch});
      all.push_back({.ranks = 2, .overlap = overlap, .room = 250, .prefetch = prefetch});
      all.push_back({.ranks = 1,
                     .parameters = MemoryKind::host,
                     .overlap = overlap,
                     .room = 250,
                     .prefetch = prefetch});
    }
    all.push_back({.ranks = 3, .overlap = overlap, .room = 200});
    all.push_back({.ranks = 2, .stage = 2, .overlap = overlap, .room = 150});
    for (const int64_t room : {260, 1000})
      all.push_back({.ranks = 1,
                     .parameters = MemoryKind::host,
                     .gradients = MemoryKind::host,
                     .overlap = overlap,
                     .inward = true,
                     .room = room});
    for (const int64_t room : {150, 300})
      all.push_back(
          {.ranks = 1, .stage = 2, .gradients = MemoryKind::host, .overlap = overlap, .room = room});
    all.push_back({.parameters = MemoryKind::host, .overlap = overlap, .room = 260});
    all.push_back({.parameters = MemoryKind::disk, .gradients = MemoryKind::host, .overlap = overlap});
    all.push_back({.ranks = 1, .parameters = MemoryKind::disk, .overlap = overlap, .room = 200});
    all.push_back({.ranks = 3, .overlap = overlap, .exact = true, .room = 300});
    all.push_back({.ranks = 1, .gradients = MemoryKind::host, .overlap = overlap, .exact = true});
    for (const int stage : {0, 1, 2})
      all.push_back({.ranks = 3, .stage = stage, .overlap = overlap, .exact = true});
  }
  return all;
}

// Steps of two micro-batches, of which some have a second backward. Each rank draws its units and their
// order, uses some twice, and says too early of some that they are complete.
TEST(RecordedVisits, GiveTheSumsOfWhateverEveryRankDoesInWhateverOrder) {
  const Scratch scratch;
  for (const VisitCase& c : cases()) {
    SCOPED_TRACE(c.text());
    comm::run_ranks(c.ranks, [&](comm::Communicator& world) {
      VisitingRank r(world, c, scratch.folder());
      std::mt19937 every(uint32_t(7 * c.stage + c.ranks));  // the same on all ranks
      for (int step = 0; step < 6; ++step) {
        r.publish(step);
        std::vector<std::vector<int>> times(size_t(c.ranks), std::vector<int>(kUnits, 0));
        r.visits.begin_step();
        for (int pass = 0; pass < 2 + int(every() % 4 == 0); ++pass) {
          std::vector<std::vector<int>> orders;
          for (int rank = 0; rank < c.ranks; ++rank) {
            std::vector<int>& order = orders.emplace_back();
            for (int n = int(every() % 14); n > 0; --n) order.push_back(int(every() % kUnits));
          }
          const bool early = every() % 4 == 0;
          r.visits.begin_pass(0, pass > 0);
          const std::vector<int>& mine = orders[size_t(world.rank())];
          for (const int u : mine) r.use(step, u, false);
          for (size_t n = mine.size(); n-- > 0;) {
            r.use(step, mine[n], true);
            if (early ||
                std::find(mine.begin(), mine.begin() + int64_t(n), mine[n]) == mine.begin() + int64_t(n))
              r.visits.complete(mine[n]);
          }
          for (int rank = 0; rank < c.ranks; ++rank)
            for (const int u : orders[size_t(rank)]) ++times[size_t(rank)][size_t(u)];
          r.visits.end_pass();
        }
        r.visits.finish_gradients();
        r.visits.end_step();
        r.expect_sums(times);
      }
    });
  }
}

// Backwards in one order; the sum of a unit is there when the next one is complete. In step `again`, the last
// rank adds to a unit that is summed already, in the same pass or in a second one; later sums begin at the
// end.
TEST(RecordedVisits, SumInTheLastPassOfAStepUntilAGradientFollows) {
  const Scratch scratch;
  const int again = 4;
  const std::vector<int> order{5, 3, 2, 1, 0};
  for (const int stage : {0, 1})
    for (const int ranks : {2, 3})
      for (const bool overlap : {false, true})
        for (const bool second : {false, true}) {
          const VisitCase c{.ranks = ranks, .stage = stage, .overlap = overlap};
          SCOPED_TRACE(c.text());
          comm::run_ranks(ranks, [&](comm::Communicator& world) {
            VisitingRank r(world, c, scratch.folder());
            for (int step = 0; step < again + 3; ++step) {
              r.publish(step);
              r.visits.begin_step();
              std::vector<std::vector<int>> times(size_t(ranks), std::vector<int>(kUnits, 2));
              const bool adds = step == again && world.rank() == ranks - 1;
              if (step == again) ++times.back()[3];
              std::vector<float> in_pass;
              for (const bool last : {false, true}) {
                r.visits.begin_pass(0, last);
                for (const int u : order) r.use(step, u, true), r.visits.complete(u);
                in_pass = r.sum_of(5);
                if (last && adds && !second) r.use(step, 3, true), r.visits.complete(3);
                r.visits.end_pass();
              }
              if (second && step >= again) {
                r.visits.begin_pass(0, true);
                if (adds) r.use(step, 3, true), r.visits.complete(3);
                r.visits.end_pass();
              }
              r.visits.finish_gradients();
              EXPECT_EQ(in_pass == r.sum_of(5), 1 <= step && step <= again) << step;
              r.visits.end_step();
              r.expect_sums(times);
            }
          });
        }
}

// In each step, a pass ends halfway on some ranks; the next one gives all sums.
TEST(RecordedVisits, DiscardThePassThatFailsOnAnyRank) {
  const Scratch scratch;
  for (const VisitCase& c : cases()) {
    SCOPED_TRACE(c.text());
    comm::run_ranks(c.ranks, [&](comm::Communicator& world) {
      VisitingRank r(world, c, scratch.folder());
      std::mt19937 every(uint32_t(5 * c.stage + c.ranks));  // the same on all ranks
      for (int step = 0; step < 4; ++step) {
        r.publish(step);
        std::vector<std::vector<int>> times(size_t(c.ranks), std::vector<int>(kUnits, 0));
        r.visits.begin_step();
        for (const bool fails : {true, false}) {
          std::vector<bool> on(size_t(c.ranks), false);
          for (int rank = 0; rank < c.ranks; ++rank) on[size_t(rank)] = fails && every() % 2 == 0;
          if (fails) on[every() % size_t(c.ranks)] = true;
          r.visits.begin_pass(0, true);
          for (int rank = 0; rank < c.ranks; ++rank)
            for (int n = 6; n > 0; --n) {
              const int u = int(every() % kUnits);
              if (rank == world.rank() && !(on[size_t(rank)] && n <= 3))
                r.use(step, u, true), r.visits.complete(u);
              if (!fails) ++times[size_t(rank)][size_t(u)];
            }
          ASSERT_EQ(r.visits.end_pass(on[size_t(world.rank())]), !fails);
          if (fails) r.visits.discard_gradients();
        }
        r.visits.finish_gradients();
        r.visits.end_step();
        r.expect_sums(times);
      }
    });
  }
}

// Gradients with all bits set, of three micro-batches; unit 0 has two in each.
float rounded(int rank, int micro, int unit, int64_t i) {
  return Philox{uint64_t(rank), uint64_t(10 * micro + unit)}.uniform(uint64_t(i)) - 0.5f;
}

template <class Driver>
void add_rounded(Driver& visits, int key, int rank, int micro, int unit) {
  std::vector<GradientSlot> slots = visits.gradients(key);
  if (!slots[0].written) return;
  const bool adds = std::exchange(*slots[0].written, true);
  for (int64_t i = 0; i < slots[0].tensor.numel(); ++i)
    slots[0].tensor.as<float>()[i] =
        (adds ? slots[0].tensor.as<float>()[i] : 0) + rounded(rank, micro, unit, i);
}

std::vector<std::vector<float>> slices_of(const ParameterStore& store) {
  std::vector<std::vector<float>> all;
  for (int u = 0; u < kUnits; ++u) {
    const Tensor t = store.gradient_slice(u);
    all.emplace_back(t.as<float>(), t.as<float>() + t.numel());
  }
  return all;
}

TEST(RecordedVisits, GiveTheBitsOfPlannedOnesInEveryOrder) {
  const std::vector<int> order{0, 1, 2, 3, 4, 5, 0};
  for (int stage : {0, 1, 2, 3})
    for (const MemoryKind home : {MemoryKind::device, MemoryKind::host})
      comm::run_ranks(3, [&](comm::Communicator& world) {
        VisitingRank planned(world, {.ranks = 3, .stage = stage, .gradients = home}, "");
        PlannedVisits visits(planned.memory, planned.store, planned.compute, planned.compute);
        std::vector<Visit> stops;
        for (const int u : order) stops.push_back({{u}, true});
        const int pass = visits.add_pass(stops);
        visits.commit();
        visits.begin_step();
        for (int micro = 0; micro < 3; ++micro) {
          visits.begin_pass(pass, micro == 2);
          for (int v = 0; v < int(order.size()); ++v) {
            visits.acquire(v);
            add_rounded(visits, v, world.rank(), micro, order[size_t(v)]);
            visits.finish(v);
          }
        }
        visits.end_step();
        VisitingRank recorded(world, {.ranks = 3, .stage = stage, .gradients = home}, "");
        std::mt19937 draw(3);
        for (int step = 0; step < 3; ++step) {
          recorded.visits.begin_step();
          for (int micro = 0; micro < 3; ++micro) {
            std::vector<int> drawn = order;
            std::shuffle(drawn.begin(), drawn.end(), draw);
            recorded.visits.begin_pass(0, micro == 2);
            for (const int u : drawn) {
              recorded.visits.acquire(u);
              add_rounded(recorded.visits, u, world.rank(), micro, u);
              recorded.visits.give(u), recorded.visits.release(u);
              if (u != 0) recorded.visits.complete(u);
            }
            recorded.visits.end_pass();
          }
          recorded.visits.finish_gradients();
          recorded.visits.end_step();
          EXPECT_EQ(slices_of(recorded.store), slices_of(planned.store)) << "stage " << stage;
        }
      });
}

// A known order that is equal on all ranks needs only the agreement at its end; a new order is learned in one
// step.
TEST(RecordedVisits, FollowTheRecordWithoutAWordWhereRanksDoAsBefore) {
  comm::run_ranks(2, [&](comm::Communicator& world) {
    VisitingRank r(world, {.overlap = true, .room = 300}, "");
    std::vector<int> order{3, 0, 2, 0, 5, 1};
    std::vector<int64_t> unforeseen;
    for (int step = 0; step < 6; ++step) {
      if (step == 3) std::reverse(order.begin(), order.end());
      r.publish(step);
      r.visits.begin_step();
      r.visits.begin_pass(0);
      for (const int u : order) r.use(step, u, false);
      for (size_t n = order.size(); n-- > 0;) {
        r.use(step, order[n], true);
        if (std::find(order.begin(), order.begin() + int64_t(n), order[n]) == order.begin() + int64_t(n))
          r.visits.complete(order[n]);
      }
      r.visits.end_pass();
      r.visits.finish_gradients();
      r.visits.end_step();
      r.expect_sums({{2, 1, 1, 1, 0, 1}, {2, 1, 1, 1, 0, 1}});
      unforeseen.push_back(r.visits.unforeseen());
    }
    EXPECT_GT(unforeseen[0], 0);
    EXPECT_EQ(unforeseen[2], unforeseen[1]);
    EXPECT_GT(unforeseen[3], unforeseen[2]);
    EXPECT_EQ(unforeseen[5], unforeseen[4]);
  });
}

// A rank alone continues the gradients of earlier micro-batches. Except for the first one of a pass, they
// return from their home on the stream of transfers, during the backward of another unit.
TEST(RecordedVisits, BringGradientsBackDuringTheBackwardBefore) {
  const std::vector<int> order{5, 3, 2, 1, 0};
  const VisitCase c{.ranks = 1, .stage = 2, .gradients = MemoryKind::host, .overlap = true};
  for (const bool recorded : {true, false})
    comm::run_ranks(1, [&](comm::Communicator& world) {
      Trace trace;
      VisitingRank r(world, c, "");
      r.store.show_in(trace);
      PlannedVisits planned(r.memory, r.store, r.compute, r.other);
      std::vector<Visit> stops;
      for (const int u : order) stops.push_back({{u}, true});
      const int pass = recorded ? 0 : planned.add_pass(stops);
      if (!recorded) planned.commit();
      for (int step = 0; step < 2; ++step) {
        r.publish(step);
        recorded ? r.visits.begin_step() : planned.begin_step();
        for (int micro = 0; micro < 3; ++micro) {
          r.other.enqueue([] { std::this_thread::sleep_for(std::chrono::milliseconds(5)); });
          if (!recorded) {
            planned.begin_pass(pass, micro == 2);
            for (int v = 0; v < int(order.size()); ++v) {
              planned.acquire(v);
              add_rounded(planned, v, 0, micro, order[size_t(v)]);
              planned.finish(v);
            }
            continue;
          }
          r.visits.begin_pass(0);
          for (const int u : order) {
            r.visits.acquire(u);
            add_rounded(r.visits, u, 0, micro, u);
            r.visits.give(u), r.visits.release(u), r.visits.complete(u);
          }
          r.visits.end_pass();
        }
        if (recorded) r.visits.finish_gradients(), r.visits.end_step();
        if (!recorded) planned.end_step();
      }
      for (const int u : order) {
        const std::vector<float> sum = r.sum_of(u);
        for (int64_t i = 0; i < kUnitNumel[size_t(u)]; ++i)
          ASSERT_EQ(sum[size_t(i)], rounded(0, 0, u, i) + rounded(0, 1, u, i) + rounded(0, 2, u, i))
              << "unit " << u;
      }
      int on_compute = 0, on_transfers = 0;
      for (const TraceEvent& e : trace.events())
        if (std::string(e.category) == "gradient") ++(e.stream == &r.compute ? on_compute : on_transfers);
      // Two steps of three passes; the last two return what all three take home. The first unit of a recorded
      // pass is not foreseen.
      const int units = int(order.size()), home = 6 * units, back = 4 * units, unforeseen = recorded ? 4 : 0;
      EXPECT_EQ(on_compute, unforeseen);
      EXPECT_EQ(on_transfers, home + back - unforeseen);
    });
}

// A rank alone fetches weights while gradients are on their way home.
TEST(RecordedVisits, FetchDuringTransfersToHomes) {
  comm::run_ranks(1, [&](comm::Communicator& world) {
    VisitingRank r(world,
                   {.ranks = 1,
                    .parameters = MemoryKind::host,
                    .gradients = MemoryKind::host,
                    .overlap = true,
                    .inward = true},
                   "");
    r.publish(0);
    r.visits.begin_step();
    r.visits.begin_pass(0);
    r.other.synchronize();
    std::atomic<bool> fetched = false;
    bool waited = false;
    r.other.enqueue([&] {
      for (int i = 0; i < 1000 && !fetched; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
      waited = !fetched;
    });
    r.use(0, 0, true);
    r.visits.complete(0);
    r.use(0, 1, false);
    fetched = true;
    r.other.synchronize();
    EXPECT_FALSE(waited);
    r.visits.end_pass();
    r.visits.finish_gradients();
    r.visits.end_step();
  });
}

// CUDA graphs of a caller contain the addresses.
TEST(RecordedVisits, KeepTheAddressOfEachUnitInAnyOrderIfAllFit) {
  comm::run_ranks(2, [&](comm::Communicator& world) {
    VisitingRank r(world, {}, "");
    std::array<void*, kUnits> first{};
    for (int step = 0; step < 4; ++step) {
      r.publish(step);
      r.visits.begin_pass(step % 2);
      for (int n = 0; n < kUnits; ++n) {
        const int u = (n + 2 * step) % kUnits;
        void* at = r.visits.acquire(u)[0].raw();
        r.visits.release(u);
        EXPECT_EQ(at, step == 0 ? first[size_t(u)] = at : first[size_t(u)])
            << "unit " << u << ", step " << step;
      }
      r.visits.end_pass();
    }
  });
}

TEST(RecordedVisits, NameTheUnitWithoutRoomAndThoseInUse) {
  comm::run_ranks(2, [&](comm::Communicator& world) {
    VisitingRank r(world, {.room = 150}, "");
    r.publish(0);
    r.visits.begin_step();
    r.visits.begin_pass(0);
    r.visits.acquire(0);
    expect_error(Exit::memory,
                 {"no room for the parameters of u3, 134 elements, in addition to those in use (", "u0",
                  "stage3_max_live_parameters"},
                 [&] { r.visits.acquire(3); });
  });
}

}  // namespace
}  // namespace cleave::zero
