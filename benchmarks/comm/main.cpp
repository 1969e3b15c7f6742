// Collectives between processes of one host: shared memory compared with Gloo (Cleave's exchange in
// rank order, and Gloo's all-reduce) and with the copy speed of the machine. "bus" is bytes of the
// tensor x 2 (n - 1) / n (all_reduce) or (n - 1) / n (others) per second, which does not depend on
// the number of ranks. Usage: comm_bench [ranks] [largest MiB]
#include <fmt/format.h>
#include <gloo/allreduce.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <vector>

#include "comm/rendezvous/rendezvous.h"
#include "comm/rendezvous/socket.h"

namespace cleave::benchmarks {
namespace {

double seconds_since(comm::Clock::time_point start) {
  return std::chrono::duration<double>(comm::Clock::now() - start).count();
}

// Returns the seconds of the fastest run of body; all ranks start each run together.
template <class Body>
double best_time(comm::Communicator& world, int runs, Body body) {
  Stream stream;
  double best = 1e9;
  for (int i = 0; i < runs + 1; ++i) {
    world.barrier(stream);
    const auto start = comm::Clock::now();
    body(stream);
    world.barrier(stream);
    if (i > 0) best = std::min(best, seconds_since(start));
  }
  return best;
}

// Copy speed of one core between two places in memory, while every rank copies.
double copy_gb_per_s(comm::Communicator& world, int64_t bytes) {
  std::vector<char> a(size_t(bytes), 1), b(size_t(bytes), 2);
  const double t = best_time(world, 5, [&](Stream&) { std::memcpy(b.data(), a.data(), a.size()); });
  return double(bytes) / t / 1e9;
}

struct Row {
  double all_reduce, reduce_scatter, all_gather;  // bus GB/s
};

Row measure(comm::Communicator& world, int64_t bytes) {
  const int n = world.size();
  const int64_t shard = std::max<int64_t>(1, bytes / 4 / n);
  std::vector<float> full(size_t(shard * n), 1.0f), part(static_cast<size_t>(shard), 1.0f);
  const Tensor t(full.data(), DType::fp32, {shard * n}), s(part.data(), DType::fp32, {shard});
  const int runs = int(std::clamp<int64_t>((256 << 20) / bytes, 3, 200));
  const double gb = double(shard * n * 4) * (n - 1) / n / 1e9;
  return {2 * gb / best_time(world, runs, [&](Stream& stream) { world.all_reduce(t, stream); }),
          gb / best_time(world, runs, [&](Stream& stream) { world.reduce_scatter(s, t, stream); }),
          gb / best_time(world, runs, [&](Stream& stream) { world.all_gather(t, s, stream); })};
}

// Gloo's all-reduce over separate connections, as in a program that uses Gloo directly.
class PlainGloo {
 public:
  PlainGloo(int rank, int ranks, const std::string& folder) : context_(rank, ranks) {
    auto device = gloo::transport::tcp::CreateDevice("127.0.0.1");
    gloo::rendezvous::FileStore store(folder);
    context_.connectFullMesh(store, device);
  }
  double bus_gb_per_s(comm::Communicator& world, int64_t bytes) {
    std::vector<float> t(size_t(bytes / 4), 1.0f);
    const int runs = int(std::clamp<int64_t>((256 << 20) / bytes, 3, 200));
    const double gb = 2 * double(bytes) * (world.size() - 1) / world.size() / 1e9;
    return gb / best_time(world, runs, [&](Stream&) {
             gloo::AllreduceOptions options(std::shared_ptr<gloo::Context>(&context_, [](auto*) {}));
             options.setOutput(t.data(), t.size());
             options.setReduceFunction(
                 [](void* c, const void* a, const void* b, size_t n) { gloo::sum<float>(c, a, b, n); });
             gloo::allreduce(options);
           });
  }

 private:
  gloo::rendezvous::Context context_;
};

double latency_us(comm::Communicator& world) {
  double x = 1;
  const Tensor t(&x, DType::fp64, {1});
  constexpr int kCalls = 2000;
  return best_time(world, 5,
                   [&](Stream& stream) {
                     for (int i = 0; i < kCalls; ++i) world.all_reduce(t, stream);
                   }) /
         kCalls * 1e6;
}

void run(int rank, int ranks, int shm_port, int gloo_port, const std::string& folder, int64_t largest) {
  comm::RankInfo info;
  info.rank = rank;
  info.world = ranks;
  comm::ConnectOptions options;
  options.comm.timeout = std::chrono::seconds(60);
  info.master_port = shm_port;
  auto shm = comm::connect(info, options);
  options.transport = comm::TransportChoice::gloo;
  info.master_port = gloo_port;
  auto gloo = comm::connect(info, options);
  PlainGloo plain(rank, ranks, folder);

  const double copy = copy_gb_per_s(shm->communicator(), 64 << 20);
  if (rank == 0) {
    fmt::print("{} ranks; every rank copying at once: {:.1f} GB/s each from and to memory\n", ranks, copy);
    fmt::print("8-byte all_reduce: shm {:.1f} us", latency_us(shm->communicator()));
    fmt::print(", gloo {:.1f} us\n\n", latency_us(gloo->communicator()));
    fmt::print(
        "bus GB/s      all_reduce            reduce_scatter        all_gather            Gloo's own\n");
    fmt::print(
        "KiB           shm    gloo  ratio    shm    gloo  ratio    shm    gloo  ratio    all_reduce\n");
  } else {
    latency_us(shm->communicator());
    latency_us(gloo->communicator());
  }
  for (int64_t bytes = 64 << 10; bytes <= largest; bytes *= 4) {
    const Row a = measure(shm->communicator(), bytes), b = measure(gloo->communicator(), bytes);
    const double own = plain.bus_gb_per_s(shm->communicator(), bytes);
    if (rank != 0) continue;
    const auto cell = [](double x, double y) {
      return fmt::format("{:6.2f} {:7.2f} {:6.1f}  ", x, y, x / y);
    };
    fmt::print("{:8} {} {} {} {:6.2f} ({:.1f} x)\n", bytes >> 10, cell(a.all_reduce, b.all_reduce),
               cell(a.reduce_scatter, b.reduce_scatter), cell(a.all_gather, b.all_gather), own,
               a.all_reduce / own);
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace cleave::benchmarks

int main(int argc, char** argv) {
  using namespace cleave;
  using namespace cleave::benchmarks;
  const int ranks = argc > 1 ? std::atoi(argv[1]) : 2;
  const int64_t largest = int64_t(argc > 2 ? std::atoi(argv[2]) : 256) << 20;
  const int shm_port = comm::port_of(comm::listen_on(0)), gloo_port = comm::port_of(comm::listen_on(0));
  char folder[] = "/tmp/comm_bench.XXXXXX";
  if (!mkdtemp(folder)) return 1;
  for (int r = 0; r < ranks; ++r)
    if (fork() == 0) {
      try {
        run(r, ranks, shm_port, gloo_port, folder, largest);
      } catch (const std::exception& e) {
        fmt::print(stderr, "rank {}: {}\n", r, e.what());
        _exit(1);
      }
      std::fflush(stdout);
      _exit(0);
    }
  int failures = 0;
  for (int status = 0; wait(&status) > 0;) failures += status != 0;
  std::filesystem::remove_all(folder);
  return failures ? 1 : 0;
}
