// Order from an update to the next use of its weights on asynchronous streams: publication must see the
// update, and uses must see the published values. Nothing here waits on the host.
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>

#include "zero/planned_visits.h"

namespace cleave::zero {
namespace {

UnitSpec unit(const char* name, int64_t numel) {
  return {name, {{std::string(name) + ".w", {numel}, {}, true}}};
}

void dawdle(Stream& stream, int microseconds) {
  stream.enqueue([=] { std::this_thread::sleep_for(std::chrono::microseconds(microseconds)); });
}

// Updates both units `steps` times and reads them in a pass after each, with random pauses in and between
// both streams. Returns the number of elements with values of another step.
int64_t stale_reads(comm::Communicator& world, int stage, bool overlap, uint32_t seed, int steps) {
  const auto self = comm::self_communicator();
  Memory memory;
  Stream compute(Stream::Mode::worker), apart(Stream::Mode::worker), beside(Stream::Mode::worker);
  Stream& comm = overlap ? apart : compute;
  ParameterStore store(memory, {.prefetch_visits = overlap, .overlap = overlap}, compute, comm);
  PlannedVisits planned(memory, store, compute, comm);
  for (const UnitSpec& u : {unit("a", 64), unit("b", 48)})
    store.add_unit(u, sharding_of_stage(stage, world, *self));
  const std::vector<Visit> visits{{{0}, false}, {{1}, false}, {{0}, false}};
  const int pass = planned.add_pass(visits);
  planned.commit();
  std::mt19937 random(seed + uint32_t(world.rank()));
  const auto pause = [&](Stream& stream) { dawdle(stream, int(random() % 3 ? random() % 200 : 0)); };
  std::atomic<int64_t> stale = 0;
  for (int step = 1; step <= steps; ++step) {
    planned.begin_step();
    pause(compute), pause(comm);
    for (int u = 0; u < store.units(); ++u) {
      // Updates the first unit on the compute stream, as device kernels do, and the second on another one, as
      // staged updates do.
      Stream& stream = u == 0 ? compute : beside;
      const Tensor slice = store.next_weights_slice(u);
      beside.wait(compute.record());
      pause(stream);
      stream.enqueue([slice, value = float(step * 10 + u)] {
        for (float& x : slice.span<float>()) x = value;
      });
      const Event updated = beside.record();
      store.publish(u, u == 0 ? std::span<const Event>() : std::span(&updated, 1));
      pause(comm);
    }
    store.wait_for_weights();
    planned.begin_pass(pass, true);
    for (int v = 0; v < int(visits.size()); ++v) {
      const Tensor weights = planned.acquire(v)[0];
      compute.enqueue([&stale, weights, value = float(step * 10 + visits[size_t(v)].units[0])] {
        for (const float x : weights.span<float>()) stale += x != value;
      });
      pause(compute);
      planned.finish(v);
    }
    planned.end_step();
  }
  compute.synchronize(), comm.synchronize(), beside.synchronize();
  return stale;
}

TEST(PublishedWeights, AreThoseThatTheNextPassReadsWhateverTheStreamsDo) {
  for (const int stage : {0, 1, 2, 3})
    for (const bool overlap : {false, true})
      for (uint32_t seed = 0; seed < 4; ++seed)
        comm::run_ranks(2, [&](comm::Communicator& world) {
          EXPECT_EQ(stale_reads(world, stage, overlap, 100 * seed, 12), 0)
              << "stage " << stage << (overlap ? " overlapped" : "") << " seed " << seed;
        });
}

}  // namespace
}  // namespace cleave::zero
