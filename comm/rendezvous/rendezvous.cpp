#include "comm/rendezvous/rendezvous.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <random>
#include <set>
#include <thread>

#include "comm/gloo/gloo_transport.h"
#include "comm/group_communicator.h"
#include "comm/rendezvous/key_value_client.h"
#include "comm/rendezvous/key_value_server.h"
#include "comm/rendezvous/meeting_point.h"
#include "comm/rendezvous/rank_process.h"
#include "comm/rendezvous/roll_call.h"
#include "comm/rendezvous/secret.h"
#include "comm/shm/shm_group.h"

namespace cleave::comm {
namespace {

using namespace std::chrono_literals;

// Time that rank 0 stays after a failure, so that other ranks hear of it. A hung rank never hears of it.
constexpr auto kLastWords = 500ms;
constexpr auto kLookEvery = 50ms;  // interval of ConnectOptions::outdated

std::string missing_text(const KeyValueServer& server, int world, const std::string& key) {
  const auto missing = server.missing();
  if (missing.empty())
    return fmt::format("all {} ranks have arrived, but one has not confirmed '{}'", world, key);
  return fmt::format("waiting for rank{} {} ({} of {} have arrived)", missing.size() == 1 ? "" : "s",
                     fmt::join(missing, ", "), world - int(missing.size()), world);
}

class JoinedWorld final : public World {
 public:
  JoinedWorld(const RankInfo& info, const ConnectOptions& options) : info_(info), options_(options) {
    const auto deadline = Clock::now() + options.rendezvous_timeout;
    join(deadline);
    try {
      const std::vector<RankProcess> processes = exchange_processes(deadline);
      check_places(processes);
      make_group(processes, deadline);
    } catch (const Error& e) {
      // Reports the reason, so that other ranks do not just see a broken connection.
      if (alarm_->reason().empty()) failed(e.what(), true);
      if (server_) server_->leave_by(Clock::now() + kLastWords);
      throw;
    }
  }

  ~JoinedWorld() override {
    communicator_.reset();
    // During stack unwinding, the broken connection tells the others.
    const bool failed = failed_ || std::uncaught_exceptions() > 0 || !alarm_->reason().empty();
    if (!failed) leave();
    keys_.reset();
    if (server_) server_->leave_by(Clock::now() + (failed ? kLastWords : options_.comm.timeout));
  }

  Communicator& communicator() override { return *communicator_; }
  const RankInfo& info() const override { return info_; }
  const std::string& transport() const override { return transport_; }
  void failed(const std::string& reason, bool explained) override {
    failed_ = true;
    keys_->failed(reason, explained);
  }
  void leave() override {
    if (alarm_->reason().empty()) keys_->leave();
  }

 private:
  wire::Hello hello(int port) const {
    return {.job_id = info_.job_id,
            .attempt = info_.attempt,
            .world = info_.world,
            .rank = info_.rank,
            .port = port,
            .host = this_process({}).host,
            .pid = getpid()};
  }

  void serve() {
    MeetingPlace place = meeting_place(info_, options_);
    if (place.door) info_.token = place.door.secret();
    point_ = {place.call, {}, false};
    ports_ = {port_of(place.listener)};
    server_ = std::make_unique<KeyValueServer>(std::move(place.listener), hello(ports_.front()), info_.token,
                                               std::move(place.door));
    if (info_.token.empty() && options_.on_wait)
      options_.on_wait(
          fmt::format("warning: the job has no secret: any process that reaches {}:{} can join it; set "
                      "CLEAVE_TOKEN to the same random word for all ranks",
                      info_.master_addr, ports_.front()));
  }

  // One attempt; if no rank of this job answers, returns false and sets `why`.
  bool call(int port, Clock::time_point deadline, std::string& why) {
    Socket socket = connect_to(point_.host, port, std::min(deadline, Clock::now() + 10s), why);
    if (!socket) return false;
    address_ = own_address(socket);
    std::string secret = info_.token;
    if (secret.empty() && point_.on_one_host) {  // exists only after rank 0 listens
      secret = SecretDoor::ask(port, Clock::now() + 5s, why);
      if (secret.empty()) return false;
    }
    auto joined = KeyValueClient::join(std::move(socket), hello(port), secret, alarm_);
    keys_ = std::move(joined.client);
    why = joined.why;
    // If there are several ports, other jobs may use some of them.
    require(!joined.refused || (joined.of_other_job && ports_.size() > 1), Exit::usage,
            "rank 0 rejected rank {}: {}", info_.rank, why);
    return bool(keys_);
  }

  void join(Clock::time_point deadline) {
    if (info_.rank == 0) serve();
    std::string why;
    std::minstd_rand jitter{unsigned(getpid())};
    auto next_report = Clock::now() + options_.report_every;
    for (auto wait = 10ms;; wait = std::min(wait * 3 / 2, 1000ms)) {
      for (int port : ports_)
        if (call(port, deadline, why)) return;
      require_current();
      require(Clock::now() < deadline, Exit::rank_lost,
              "rank {} did not reach rank 0 at {}:{} within {:.0f} s: {}; check that rank 0 runs and that "
              "the address is right",
              info_.rank, point_.host, ports_.front(), double(options_.rendezvous_timeout.count()) / 1000,
              why);
      if (Clock::now() >= next_report && options_.on_wait) {
        options_.on_wait(fmt::format("rank {} cannot reach rank 0 at {}:{} yet: {}", info_.rank, point_.host,
                                     ports_.front(), why));
        next_report = Clock::now() + options_.report_every;
      }
      std::this_thread::sleep_for(wait + wait * int(jitter() % 100) / 200);
    }
  }

  void require_current() const {
    require(!options_.outdated || !options_.outdated(), Exit::rank_lost,
            "attempt {} ended before the ranks met: another rank was lost", info_.attempt);
  }

  // Waits for the other ranks, and reports the missing ones regularly.
  std::string await(const std::string& key, Clock::time_point deadline) {
    // Rank 0 knows the missing ranks, so the others let it report first.
    const auto until = server_ ? deadline : deadline + 10s;
    auto next_report = Clock::now() + options_.report_every;
    for (;;) {
      const auto look = options_.outdated ? kLookEvery : options_.report_every;
      const auto value = keys_->get(key, std::min({until, next_report, Clock::now() + look}));
      if (value) return *value;
      require_current();
      if (Clock::now() < until) {
        if (Clock::now() < next_report) continue;
        if (server_ && options_.on_wait) options_.on_wait(missing_text(*server_, info_.world, key));
        next_report = Clock::now() + options_.report_every;
        continue;
      }
      if (!server_) fail(Exit::rank_lost, "rank {} waited for other ranks until the deadline", info_.rank);
      std::string refused;
      for (const std::string& r : server_->refusals()) refused += "; rejected: " + r;
      fail(Exit::rank_lost, "the ranks did not connect within {:.1f} s: {}{}",
           double(options_.rendezvous_timeout.count()) / 1000, missing_text(*server_, info_.world, key),
           refused);
    }
  }

  std::vector<RankProcess> exchange_processes(Clock::time_point deadline) {
    RankProcess own = this_process(address_);
    own.transport = int(options_.transport);
    const Store store{[&](const std::string& key, const std::string& value) { keys_->set(key, value); },
                      [&](const std::string& key) { return await(key, deadline); }};
    std::vector<RankProcess> processes;
    for (const std::string& text : roll_call(store, info_.rank, info_.world, encode(own)))
      processes.push_back(decode_rank_process(text));
    return processes;
  }

  // Hosts that the ranks see of each other override the launcher's claims.
  void check_places(const std::vector<RankProcess>& processes) {
    std::vector<std::string> hosts;
    info_.local_rank = info_.local_size = 0;
    for (int r = 0; r < info_.world; ++r) {
      const RankProcess& process = processes[size_t(r)];
      if (std::find(hosts.begin(), hosts.end(), process.host_id) == hosts.end())
        hosts.push_back(process.host_id);
      if (process.host_id != processes[size_t(info_.rank)].host_id) continue;
      ++info_.local_size;
      if (r < info_.rank) ++info_.local_rank;
    }
    info_.nodes = int(hosts.size());
    info_.node_rank =
        int(std::find(hosts.begin(), hosts.end(), processes[size_t(info_.rank)].host_id) - hosts.begin());
  }

  // Rank 0's choice applies to all, so that ranks with different options can meet and compare them.
  void make_group(const std::vector<RankProcess>& processes, Clock::time_point deadline) {
    const bool one_host = info_.nodes == 1;
    const auto transport = TransportChoice(processes[0].transport);
    require(one_host || transport != TransportChoice::shm, Exit::usage,
            "--transport shm: needs all ranks on one host (got {} hosts: rank 0 on {}, rank {} on {}); use "
            "auto or "
            "gloo",
            info_.nodes, processes[0].host, info_.rank, processes[size_t(info_.rank)].host);
    const bool shm = one_host && transport != TransportChoice::gloo;
    const auto group = shm ? shm_group(processes, deadline) : gloo_group(processes);
    communicator_ = communicator_over(group, info_.rank);
    transport_ = shm ? fmt::format("shared memory, {} ranks on {}", info_.world, processes[0].host)
                     : fmt::format("gloo over TCP, {} ranks on {} host{}", info_.world, info_.nodes,
                                   info_.nodes == 1 ? "" : "s");
  }

  std::shared_ptr<Group> shm_group(const std::vector<RankProcess>& processes, Clock::time_point deadline) {
    ShmGroup::Members members{"world", all_ranks(info_.world), {}, info_.rank};
    for (const RankProcess& s : processes) members.pids.push_back(s.pid);
    const size_t bytes = ShmGroup::bytes_needed(info_.world);
    SharedMemory memory;
    if (info_.rank == 0) {
      memory = SharedMemory::create(bytes);
      keys_->set("shm", std::to_string(memory.fd()));
    } else {
      const auto fd = wire::whole_number(await("shm", deadline));
      memory = SharedMemory::open(processes[0].pid, fd ? int(*fd) : -1, bytes);
      memory.close_fd();
    }
    // All ranks map the memory before any leaves: a rank that fails at once would end rank 0, and with it the
    // access to the memory.
    keys_->set(fmt::format("mapped/{}", info_.rank), "");
    if (info_.rank == 0) {
      for (int r = 0; r < info_.world; ++r) await(fmt::format("mapped/{}", r), deadline);
      keys_->set("mapped", "");
    }
    await("mapped", deadline);
    memory.close_fd();
    return std::make_shared<ShmGroup>(std::move(members), std::move(memory), options_.comm, alarm_);
  }

  std::shared_ptr<Group> gloo_group(const std::vector<RankProcess>& processes) {
    GlooMembers members{"world", all_ranks(info_.world), {}, info_.rank, loopback(), "gloo/world"};
    for (int r = 0; r < info_.world; ++r)
      members.labels.push_back(
          fmt::format("rank {} (pid {} on {})", r, processes[size_t(r)].pid, processes[size_t(r)].host));
    if (info_.nodes > 1) {
      // The other hosts reached rank 0 from addresses that rank 0 can reach; rank 0 uses the address of its
      // route to one of them.
      const auto other = std::find_if(processes.begin(), processes.end(), [&](const RankProcess& s) {
        return s.host_id != processes[0].host_id;
      });
      members.address = processes[size_t(info_.rank)].host_id == processes[0].host_id
                            ? address_towards(other->address)
                            : address_;
      require(!members.address.empty(), Exit::usage,
              "rank {} found no address of this machine that reaches {}", info_.rank, other->address);
    }
    return make_gloo_group(std::move(members), keys_, options_.comm, alarm_);
  }

  RankInfo info_;
  const ConnectOptions options_;
  MeetingPoint point_ = meeting_point(info_.master_addr);
  std::vector<int> ports_ = ports_to_call(info_);
  std::string address_, transport_;
  bool failed_ = false;
  std::shared_ptr<Alarm> alarm_ = std::make_shared<Alarm>(options_.on_loss);
  std::unique_ptr<KeyValueServer> server_;
  std::shared_ptr<KeyValueClient> keys_;
  std::unique_ptr<Communicator> communicator_;
};

class LoneWorld final : public World {
 public:
  explicit LoneWorld(const RankInfo& info) : info_(info) {}
  Communicator& communicator() override { return *communicator_; }
  const RankInfo& info() const override { return info_; }
  const std::string& transport() const override { return transport_; }
  void failed(const std::string&, bool) override {}
  void leave() override {}

 private:
  const RankInfo info_;
  const std::string transport_ = "none, a single rank";
  std::unique_ptr<Communicator> communicator_ = self_communicator("world");
};

}  // namespace

std::unique_ptr<World> connect(const RankInfo& info, const ConnectOptions& options) {
  require(info.world >= 1 && info.rank >= 0 && info.rank < info.world, Exit::usage,
          "rank {} is out of range (the job has {} ranks)", info.rank, info.world);
  if (info.world == 1) return std::make_unique<LoneWorld>(info);
  return std::make_unique<JoinedWorld>(info, options);
}

TransportChoice parse_transport(std::string_view text) {
  if (text == "auto") return TransportChoice::automatic;
  if (text == "shm") return TransportChoice::shm;
  if (text == "gloo") return TransportChoice::gloo;
  fail(Exit::usage, "--transport: unknown (got {}, expected auto, shm or gloo)", text);
}

}  // namespace cleave::comm
