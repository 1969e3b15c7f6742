// Time until N ranks have joined a job and know all others: threads of one process, each with its own
// connection to the store. Usage: join_bench [RANKS [REPEATS]]
#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "comm/rendezvous/key_value_client.h"
#include "comm/rendezvous/key_value_server.h"
#include "comm/rendezvous/rank_process.h"
#include "comm/rendezvous/roll_call.h"

namespace {

using namespace cleave::comm;
using namespace std::chrono_literals;

constexpr const char* kSecret = "secret";

double seconds_to_join(int world) {
  Socket listener = listen_on(0);
  const int port = port_of(listener);
  const auto hello = [&](int rank) {
    return wire::Hello{
        .job_id = "bench", .world = world, .rank = rank, .port = port, .host = "host", .pid = rank};
  };
  const auto begin = Clock::now(), deadline = begin + 60s;
  KeyValueServer server(std::move(listener), hello(0), kSecret);
  std::mutex mutex;
  size_t known = 0;
  std::vector<std::unique_ptr<KeyValueClient>> clients(static_cast<size_t>(world));
  std::vector<std::thread> ranks;
  for (int r = 0; r < world; ++r)
    ranks.emplace_back([&, r] {
      std::string why;
      auto& client = clients[size_t(r)];
      while (!client && Clock::now() < deadline)
        client = KeyValueClient::join(connect_to("127.0.0.1", port, deadline, why), hello(r), kSecret,
                                      std::make_shared<Alarm>())
                     .client;
      if (!client) return;
      const Store store{[&](const std::string& key, const std::string& value) { client->set(key, value); },
                        [&](const std::string& key) { return client->get(key, deadline).value_or(""); }};
      // Eight ranks per host, with texts as long as those of real ranks.
      const RankProcess own{fmt::format("node-{}", r / 8), std::string(90, char('a' + r / 8 % 26)),
                            "10.0.0.1", r};
      const size_t texts = roll_call(store, r, world, encode(own)).size();
      const std::lock_guard lock(mutex);
      known += texts;
    });
  for (std::thread& t : ranks) t.join();
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  for (const auto& client : clients)
    if (client) client->leave();
  if (known != size_t(world) * size_t(world)) {
    fmt::print(stderr, "error: {} ranks: some did not join\n", world);
    std::exit(1);
  }
  return seconds;
}

}  // namespace

int main(int argc, char** argv) {
  const int ranks = argc > 1 ? std::atoi(argv[1]) : 1024, repeats = argc > 2 ? std::atoi(argv[2]) : 5;
  std::vector<double> times;
  for (int i = 0; i < repeats; ++i) times.push_back(seconds_to_join(ranks));
  std::sort(times.begin(), times.end());
  fmt::print("{} ranks joined in {:.2f} s (median of {}; {:.2f} to {:.2f} s)\n", ranks,
             times[times.size() / 2], repeats, times.front(), times.back());
}
