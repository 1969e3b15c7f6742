#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>

#include "comm/rendezvous/rendezvous.h"
#include "comm/rendezvous/socket.h"
#include "core/cores.h"
#include "core/error.h"
#include "device/team.h"
#include "plan/bench/machine_rows.h"

namespace cleave::bench {
namespace {

constexpr int64_t kBytes = 64 << 20;
constexpr std::chrono::seconds kDeadline{60};  // for waits on other ranks
constexpr int kCalls = 500;                    // of the smallest message

enum class Exchange : uint8_t { copy, all_reduce, reduce_scatter, all_gather, small };

// Returns the seconds of the fastest repetition; all ranks begin and end each one together.
template <class Body>
double fastest_together(comm::Communicator& world, const Body& body) {
  using Clock = std::chrono::steady_clock;
  constexpr int kRepeats = 3;
  Stream stream;
  double best = 1e30;
  for (int i = 0; i < kRepeats; ++i) {
    world.barrier(stream);
    const auto begin = Clock::now();
    body(stream);
    world.barrier(stream);
    best = std::min(best, std::chrono::duration<double>(Clock::now() - begin).count());
  }
  return best;
}

double seconds_of(Exchange what, comm::Communicator& world) {
  const int n = world.size();
  const int64_t shard = kBytes / 4 / n;
  std::vector<float> whole(size_t(shard * n), 1.0f), part(size_t(shard), 1.0f), other;
  const Tensor t(whole.data(), DType::fp32, {shard * n}), s(part.data(), DType::fp32, {shard});
  double one = 1;
  const Tensor small(&one, DType::fp64, {1});
  if (what == Exchange::copy) other.resize(whole.size());
  return fastest_together(world, [&](Stream& stream) {
    switch (what) {
      case Exchange::copy:
        std::memcpy(other.data(), whole.data(), size_t(t.bytes()));
        break;
      case Exchange::all_reduce:
        world.all_reduce(t, stream);
        break;
      case Exchange::reduce_scatter:
        world.reduce_scatter(s, t, stream);
        break;
      case Exchange::all_gather:
        world.all_gather(t, s, stream);
        break;
      case Exchange::small:
        for (int i = 0; i < kCalls; ++i) world.all_reduce(small, stream);
    }
  });
}

// Main function of a rank's process: runs orders until the sender closes. The first rank answers.
void be_rank(int rank, int ranks, int port, int orders) {
  set_team_threads(std::max(1, int(usable_cores().size()) / ranks));
  comm::RankInfo info;
  info.rank = rank, info.world = ranks, info.master_port = port;
  comm::ConnectOptions options;
  options.comm.timeout = kDeadline;
  options.rendezvous_timeout = kDeadline;
  const auto world = comm::connect(info, options);
  // Each rank reads one order at a time: a rank finishes an order only after all ranks have it.
  for (Exchange what; read(orders, &what, sizeof what) == ssize_t(sizeof what);) {
    const double seconds = seconds_of(what, world->communicator());
    if (rank == 0)
      require(write(orders, &seconds, sizeof seconds) == ssize_t(sizeof seconds), Exit::internal,
              "the measurements could not be passed to rank 0");
  }
  world->leave();
}

class Ranks {
 public:
  explicit Ranks(int ranks) {
    int ends[2];
    require(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) == 0, Exit::internal, "cannot create sockets: {}",
            std::strerror(errno));
    const int port = comm::port_of(comm::listen_on(0));
    std::fflush(nullptr);
    for (int rank = 0; rank < ranks; ++rank) {
      const pid_t process = fork();
      require(process >= 0, Exit::internal, "cannot start a process: {}", std::strerror(errno));
      if (process == 0) {
        close(ends[0]);
        _exit(run(rank, ranks, port, ends[1]));
      }
      processes_.push_back(process);
    }
    close(ends[1]);
    orders_ = ends[0];
    const timeval longest{.tv_sec = 2 * kDeadline.count(), .tv_usec = 0};  // ranks detect errors first
    setsockopt(orders_, SOL_SOCKET, SO_RCVTIMEO, &longest, sizeof longest);
  }
  ~Ranks() { end(); }
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  double seconds(Exchange what) {
    bool sent = true;
    for (size_t i = 0; i < processes_.size(); ++i)
      sent = sent && send(orders_, &what, sizeof what, MSG_NOSIGNAL) == ssize_t(sizeof what);
    double answer = 0;
    if (sent && read(orders_, &answer, sizeof answer) == ssize_t(sizeof answer)) return answer;
    const size_t all = processes_.size();
    fail(Exit::rank_lost, "{} of {} ranks of the measurement failed; see their output above", end(), all);
  }

 private:
  static int run(int rank, int ranks, int port, int orders) {
    try {
      be_rank(rank, ranks, port, orders);
      return 0;
    } catch (const std::exception& e) {
      fmt::print(stderr, "rank {}: {}\n", rank, e.what());
      return 1;
    }
  }

  // Releases the ranks and returns the number of failures.
  int end() {
    if (orders_ >= 0) close(orders_);
    orders_ = -1;
    int failed = 0;
    for (const pid_t process : processes_) {
      int status = 0;
      waitpid(process, &status, 0);
      failed += status != 0;
    }
    processes_.clear();
    return failed;
  }

  std::vector<pid_t> processes_;
  int orders_ = -1;
};

}  // namespace

std::vector<Subject> comm_rows(int ranks) {
  const auto processes = std::make_shared<Ranks>(ranks);
  const std::string size = fmt::format("/{}MiB", kBytes >> 20), copy = "limit/copy" + size;
  const auto subject = [&](const std::string& name, Exchange what, double units, std::vector<Bound> bounds) {
    const char* unit = what == Exchange::small ? "calls/s" : "GB/s";
    return Subject{name, [=] {
                     return Visit{.rate = units / processes->seconds(what), .unit = unit, .bounds = bounds};
                   }};
  };
  const double bytes = double(kBytes / 4 / ranks * ranks * 4) * 1e-9, sent = bytes * (ranks - 1) / ranks;
  const std::vector<Bound> copies{{copy, "all processes copy at the same time"}};
  return {subject(copy, Exchange::copy, bytes, {}),
          subject("comm/all_reduce" + size, Exchange::all_reduce, 2 * sent, copies),
          subject("comm/reduce_scatter" + size, Exchange::reduce_scatter, sent, copies),
          subject("comm/all_gather" + size, Exchange::all_gather, sent, copies),
          subject("comm/all_reduce/8B", Exchange::small, kCalls, {})};
}

}  // namespace cleave::bench
