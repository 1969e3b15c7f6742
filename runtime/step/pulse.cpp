#include "runtime/step/pulse.h"

#include <unistd.h>

#include <array>
#include <chrono>
#include <optional>
#include <utility>
#include <vector>

#include "comm/device_group.h"
#include "comm/flight_ring.h"
#include "core/warnings.h"
#include "runtime/step/replica_check.h"
#include "runtime/step/stragglers.h"

namespace cleave::runtime {
namespace {

using Phase = comm::FlightRing::Phase;
constexpr std::array kCounted = {Phase::forward, Phase::backward, Phase::update};

std::string host_name() {
  char name[256] = {};
  gethostname(name, sizeof(name) - 1);
  return name;
}

// Values of one rank in one step, in nanoseconds, and its checksums.
constexpr size_t kTimes = 1 + kCounted.size(), kValues = kTimes + 2 * ReplicaCheck::kKinds;

}  // namespace

struct Pulse::State {
  State(Ranks& r, const config::DsConfig& config, Device device)
      : ranks(r),
        group(r.world().duplicate("pulse")),
        access(group->transport()),
        flights(access->flights()) {
    if (config.replica_check_steps > 0)
      replicas.emplace(ranks, config.replica_check_steps, config.replica_policy, device);
    if (config.straggler_share == 0 || !flights) return;
    std::vector<int> stages;
    for (int rank = 0; rank < ranks.world().size(); ++rank)
      stages.push_back(ranks.mesh().shape.place(rank).pipe);
    stragglers.emplace(config.straggler_share, config.straggler_steps, stages,
                       ranks.texts(ranks.world(), host_name()));
  }

  void say(const std::string& line) const {
    if (ranks.world().rank() == 0) print_warning(line);
  }

  // Times of this rank since the last call; 0 before.
  void measure() {
    const auto now = std::chrono::steady_clock::now();
    mine.fill(0);
    if (last != std::chrono::steady_clock::time_point())
      mine[0] = std::chrono::nanoseconds(now - last).count();
    for (size_t i = 0; flights && i < kCounted.size(); ++i) {
      const int64_t total = flights->time_in_calls(kCounted[i]);
      mine[1 + i] = total - in_calls[i];
      in_calls[i] = total;
    }
    last = now;
  }

  void act(RankState& rank, Stream& compute) {
    const auto ranks_count = size_t(ranks.world().size());
    std::vector<RankTimes> times(ranks_count);
    std::vector<ReplicaCheck::Sums> sums(ranks_count);
    bool measured = true;
    for (size_t r = 0; r < ranks_count; ++r) {
      const int64_t* values = all.data() + r * kValues;
      measured = measured && values[0] > 0;
      times[r].step = double(values[0]) / 1e9;
      for (size_t i = 0; i < kCounted.size(); ++i) times[r].in_calls[i] = double(values[1 + i]) / 1e9;
      for (size_t k = 0; k < ReplicaCheck::kKinds; ++k)
        sums[r][k] = {values[kTimes + 2 * k], values[kTimes + 2 * k + 1]};
    }
    if (stragglers && measured)
      for (const std::string& line : stragglers->see(times)) say(line);
    if (replicas)
      for (const std::string& line : replicas->compare(rank, sent, sums, compute)) say(line);
  }

  Ranks& ranks;
  const std::unique_ptr<comm::Communicator> group;
  comm::TransportAccess* const access;
  const comm::FlightRing* const flights;
  std::optional<ReplicaCheck> replicas;
  std::optional<Stragglers> stragglers;
  std::chrono::steady_clock::time_point last = {};
  std::array<int64_t, kCounted.size()> in_calls = {};
  std::array<int64_t, kValues> mine = {};
  std::vector<int64_t> all;
  int64_t sent = 0;  // step of the values in transit; 0: none
  bool checked = false;
  Event sums_are_done;
  Stream worker{Stream::Mode::worker};  // destroyed first
};

std::unique_ptr<Pulse> Pulse::of(Ranks& ranks, const config::DsConfig& config, Device device) {
  const bool wanted = config.replica_check_steps > 0 || config.straggler_share > 0;
  if (!wanted || ranks.world().size() == 1 || !ranks.world().transport()) return nullptr;
  return std::unique_ptr<Pulse>(new Pulse(std::make_unique<State>(ranks, config, device)));
}

Pulse::Pulse(std::unique_ptr<State> state) : state_(std::move(state)) {}
Pulse::~Pulse() = default;

void Pulse::check(RankState& rank, int64_t step, Stream& compute) {
  State& s = *state_;
  if (!s.replicas) return;
  s.worker.synchronize();  // it has read the sums of the step before
  s.replicas->enqueue(rank, step, compute);
  s.sums_are_done = compute.record();
  s.checked = true;
}

void Pulse::end_step(RankState& rank, int64_t step, Stream& compute) {
  State& s = *state_;
  s.worker.synchronize();
  if (s.sent > 0) s.act(rank, compute);
  s.measure();
  s.sent = step;
  s.worker.wait(s.sums_are_done);
  s.worker.enqueue([&s, checked = std::exchange(s.checked, false)] {
    const ReplicaCheck::Sums sums = checked ? s.replicas->sums() : ReplicaCheck::Sums{};
    for (size_t k = 0; k < sums.size(); ++k)
      s.mine[kTimes + 2 * k] = sums[k].key, s.mine[kTimes + 2 * k + 1] = sums[k].sum;
    s.all = s.access->exchange(s.mine, "comparison of the ranks");
  });
}

}  // namespace cleave::runtime
