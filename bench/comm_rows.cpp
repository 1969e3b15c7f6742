#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>

#include "bench/machine_rows.h"
#include "comm/rendezvous.h"
#include "comm/socket.h"
#include "core/cores.h"
#include "core/error.h"
#include "device/team.h"

namespace cleave::bench {
namespace {

constexpr int64_t kBytes = 64 << 20;
constexpr int kRepeats = 7;

enum Measured { kCopy, kAllReduce, kReduceScatter, kAllGather, kSmall, kMeasured };
using Rates = std::array<Rate, kMeasured>;

// All ranks begin and end together.
template <class Body>
Rate rate_together(comm::Communicator& world, double units, const Body& body) {
  using Clock = std::chrono::steady_clock;
  Stream stream;
  std::vector<double> seconds;
  for (int i = 0; i <= kRepeats; ++i) {
    world.barrier(stream);
    const auto begin = Clock::now();
    body(stream);
    world.barrier(stream);
    if (i > 0) seconds.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
  }
  return rate_of(std::move(seconds), units);
}

Rates rates_of(comm::Communicator& world) {
  const int n = world.size();
  const int64_t shard = kBytes / 4 / n;
  std::vector<float> whole(size_t(shard * n), 1.0f), other(size_t(shard * n), 2.0f),
      part(size_t(shard), 1.0f);
  const Tensor t(whole.data(), DType::fp32, {shard * n}), s(part.data(), DType::fp32, {shard});
  double one = 1;
  const Tensor small(&one, DType::fp64, {1});
  const double sent = double(t.bytes()) * (n - 1) / n / 1e9;
  constexpr int kCalls = 500;
  Rates rates;
  rates[kCopy] = rate_together(world, double(t.bytes()) / 1e9,
                               [&](Stream&) { std::memcpy(other.data(), whole.data(), size_t(t.bytes())); });
  rates[kAllReduce] = rate_together(world, 2 * sent, [&](Stream& stream) { world.all_reduce(t, stream); });
  rates[kReduceScatter] =
      rate_together(world, sent, [&](Stream& stream) { world.reduce_scatter(s, t, stream); });
  rates[kAllGather] = rate_together(world, sent, [&](Stream& stream) { world.all_gather(t, s, stream); });
  rates[kSmall] = rate_together(world, kCalls, [&](Stream& stream) {
    for (int i = 0; i < kCalls; ++i) world.all_reduce(small, stream);
  });
  return rates;
}

// A rank's process. The first one writes what it measured to `answer`.
void be_rank(int rank, int ranks, int port, int answer) {
  set_team_threads(std::max(1, int(usable_cores().size()) / ranks));
  comm::RankInfo info;
  info.rank = rank, info.world = ranks, info.master_port = port;
  comm::ConnectOptions options;
  options.comm.timeout = std::chrono::seconds(60);
  const auto world = comm::connect(info, options);
  const Rates rates = rates_of(world->communicator());
  world->leave();
  if (rank == 0)
    require(write(answer, &rates, sizeof rates) == ssize_t(sizeof rates), Exit::internal,
            "what was measured could not be handed on");
}

}  // namespace

std::vector<Row> comm_rows(int ranks) {
  int ends[2];
  require(pipe(ends) == 0, Exit::internal, "no pipe: {}", std::strerror(errno));
  const int port = comm::port_of(comm::listen_on(0));
  std::fflush(nullptr);
  for (int rank = 0; rank < ranks; ++rank)
    if (fork() == 0) {
      try {
        be_rank(rank, ranks, port, ends[1]);
      } catch (const std::exception& e) {
        fmt::print(stderr, "rank {}: {}\n", rank, e.what());
        _exit(1);
      }
      _exit(0);
    }
  close(ends[1]);
  int failed = 0;
  for (int rank = 0, status = 0; rank < ranks; ++rank) {
    wait(&status);
    failed += status != 0;
  }
  Rates r;
  const bool whole = read(ends[0], &r, sizeof r) == ssize_t(sizeof r);
  close(ends[0]);
  require(failed == 0 && whole, Exit::rank_lost,
          "{} of {} ranks of the measurement failed; what they said is above", failed, ranks);
  const std::string size = fmt::format("/{}MiB", kBytes >> 20);
  const auto row = [&](const char* name, Measured what) {
    return Row{.name = name + size,
               .unit = "GB/s",
               .rate = r[what],
               .limit = r[kCopy].high,
               .limited_by = "each copies while all do"};
  };
  return {row("comm/all_reduce", kAllReduce),
          row("comm/reduce_scatter", kReduceScatter),
          row("comm/all_gather", kAllGather),
          {.name = "comm/all_reduce/8B", .unit = "calls/s", .rate = r[kSmall]}};
}

}  // namespace cleave::bench
