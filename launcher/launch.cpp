#include "launcher/launch.h"

#include <fmt/ranges.h>
#include <poll.h>
#include <signal.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>

#include "core/cores.h"
#include "core/range.h"
#include "launcher/children.h"
#include "launcher/discovery.h"
#include "launcher/rank_lines.h"

namespace cleave {
namespace {

constexpr size_t kLongestLine = 64 << 10;  // what is held back while a line has not ended

std::string random_hex() {
  uint64_t number[2] = {};
  require(getrandom(number, sizeof(number), 0) == ssize_t(sizeof(number)), Exit::internal,
          "getrandom failed");
  return fmt::format("{:016x}{:016x}", number[0], number[1]);
}

// Signals that this process takes from a descriptor while it lives.
class Signals {
 public:
  Signals() {
    sigset_t set;
    sigemptyset(&set);
    for (int s : {SIGINT, SIGTERM, SIGUSR1, SIGCHLD}) sigaddset(&set, s);
    pthread_sigmask(SIG_BLOCK, &set, &before_);
    fd_ = Socket(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  }
  ~Signals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  int fd() const { return fd_.fd(); }
  std::optional<int> next() {
    signalfd_siginfo info;
    if (read(fd_.fd(), &info, sizeof(info)) != ssize_t(sizeof(info))) return {};
    return int(info.ssi_signo);
  }

 private:
  sigset_t before_;
  Socket fd_;
};

class Launch {
 public:
  Launch(const LaunchOptions& options, const LaunchCallbacks& callbacks)
      : options_(options), callbacks_(callbacks), lines_(std::max(1, options.ranks)) {
    constexpr int kMost = 4096;
    require(options.ranks >= 1 && options.ranks <= kMost, Exit::usage,
            "{} ranks cannot be started on one machine; ask for 1 to {}", options.ranks, kMost);
    require(!options.command.empty(), Exit::usage, "no command to start");
    port_ = reserve_port(options.port);
    require(bool(port_), Exit::usage, "port {} cannot be used for the rendezvous: {} has it", options.port,
            owner_of_port(options.port));
    job_id_ = options.job_id.empty() ? fmt::format("local-{}-{}", getpid(), random_hex().substr(0, 8))
                                     : options.job_id;
    token_ = random_hex();
  }

  ~Launch() {
    for (const ChildProcess& c : children_) {
      if (ended(c)) continue;
      kill(-c.pid, SIGKILL);
      waitpid(c.pid, nullptr, 0);
    }
  }

  LaunchResult run() {
    for (int r = 0; r < options_.ranks; ++r) children_.push_back(start_child(spec_of(r)));
    while (order_.size() < children_.size()) {
      wait_for_news();
      while (const auto signal = signals_.next()) take(*signal);
      reap();
      hurry();
    }
    for (const ChildProcess& c : children_) kill(-c.pid, SIGKILL);  // what the ranks left behind
    drain();
    return result();
  }

 private:
  ChildSpec spec_of(int rank) const {
    Environment env = environment_of_process();
    // An outer launcher's words about this process are not about the ranks.
    std::erase_if(env, [](const auto& entry) {
      return entry.first.starts_with("TORCHELASTIC_") || entry.first.starts_with("GROUP_");
    });
    for (const auto& [name, value] : options_.environment) env[name] = value;
    const std::vector<int> cores = cores_of(rank, env);
    ThreadFacts facts = thread_facts(options_.ranks);
    facts.own_cores = false;  // this process's cores are all ranks'
    env.emplace("OMP_NUM_THREADS", std::to_string(choose_threads(facts).threads));
    if (!cores.empty()) env["CLEAVE_CORES"] = fmt::format("{}", fmt::join(cores, ","));
    env["RANK"] = env["LOCAL_RANK"] = std::to_string(rank);
    env["WORLD_SIZE"] = env["LOCAL_WORLD_SIZE"] = std::to_string(options_.ranks);
    env["NODE_RANK"] = std::to_string(0);
    env["MASTER_ADDR"] = RankInfo{}.master_addr;
    env["MASTER_PORT"] = std::to_string(port_of(port_));
    env["CLEAVE_LAUNCHED"] = std::to_string(1);
    env["CLEAVE_JOB_ID"] = job_id_;
    env["CLEAVE_ATTEMPT"] = std::to_string(options_.attempt);
    env["CLEAVE_TOKEN"] = token_;
    ChildSpec spec{options_.command, {}, cores, rank == 0 && options_.rank0_inherits_output};
    for (const auto& [name, value] : env) spec.environment.push_back(name + "=" + value);
    return spec;
  }

  // Nothing when there are too few cores, or when the user asked for more threads than the share has cores.
  std::vector<int> cores_of(int rank, const Environment& env) const {
    const std::vector<int> all = usable_cores();
    const int64_t share = int64_t(all.size()) / options_.ranks;
    if (!options_.bind_cores || share < 1) return {};
    const auto threads = env.find("OMP_NUM_THREADS");
    if (threads != env.end() && std::atol(threads->second.c_str()) > share) return {};
    return {all.begin() + rank * share, all.begin() + (rank + 1) * share};
  }

  void wait_for_news() {
    std::vector<pollfd> polls = {{signals_.fd(), POLLIN, 0}};
    std::vector<std::pair<size_t, int>> sources;
    for (size_t r = 0; r < children_.size(); ++r)
      for (int i : {0, 1})
        if (children_[r].output[i]) {
          polls.push_back({children_[r].output[i].fd(), POLLIN, 0});
          sources.emplace_back(r, i);
        }
    poll(polls.data(), polls.size(), 100);
    for (size_t i = 0; i < sources.size(); ++i)
      if (polls[i + 1].revents) read_output(sources[i].first, sources[i].second);
  }

  void read_output(size_t rank, int which) {
    Socket& pipe = children_[rank].output[which];
    std::string& held = children_[rank].held[which];
    char buffer[16 << 10];
    const ssize_t n = read(pipe.fd(), buffer, sizeof(buffer));
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n > 0) held.append(buffer, size_t(n));
    if (n <= 0) {
      pipe.close();
      if (!held.empty()) held += '\n';
    }
    if (held.size() > kLongestLine && held.find('\n') == std::string::npos) held += '\n';
    for (size_t end; (end = held.find('\n')) != std::string::npos; held.erase(0, end + 1)) {
      const auto line = lines_.take(rank, std::string_view(held).substr(0, end + 1), which == 1);
      if (line && callbacks_.output) callbacks_.output(*line, which == 1);
    }
  }

  void drain() {
    const auto until = Clock::now() + std::chrono::milliseconds(500);
    for (size_t r = 0; r < children_.size(); ++r)
      for (int i : {0, 1})
        while (children_[r].output[i] && wait_for(children_[r].output[i].fd(), POLLIN, until))
          read_output(r, i);
  }

  void take(int signal) {
    if (signal == SIGCHLD) return;
    const bool again = signal != SIGUSR1 && (std::count(passed_.begin(), passed_.end(), SIGINT) ||
                                             std::count(passed_.begin(), passed_.end(), SIGTERM));
    if (again) return send(SIGKILL);
    if (std::count(passed_.begin(), passed_.end(), signal)) return;
    passed_.push_back(signal);
    send(signal);
  }

  // To those that still run.
  void send(int signal) {
    for (const ChildProcess& c : children_)
      if (!ended(c)) kill(-c.pid, signal);
  }

  bool ended(const ChildProcess& child) const {
    return std::any_of(order_.begin(), order_.end(),
                       [&](const auto& e) { return children_[size_t(e.first)].pid == child.pid; });
  }

  void reap() {
    for (size_t r = 0; r < children_.size(); ++r) {
      int status = 0;
      if (ended(children_[r]) || waitpid(children_[r].pid, &status, WNOHANG) != children_[r].pid) continue;
      const int exit = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
      order_.emplace_back(int(r), exit);
      // What we killed ourselves is not a cause.
      const bool stopped = std::count(stopped_.begin(), stopped_.end(), int(r)) > 0;
      if ((stopped || hurried_ != Hurried::no) && WIFSIGNALED(status)) killed_by_us_.push_back(int(r));
      if (exit != 0 && failed_at_ == Clock::time_point::max()) failed_at_ = Clock::now();
    }
  }

  // After a failure the others normally leave by themselves, because their connections break.
  void hurry() {
    if (failed_at_ == Clock::time_point::max()) return;
    end_stopped();
    const auto waited = Clock::now() - failed_at_;
    if (hurried_ == Hurried::no && waited > options_.leave_grace) {
      hurried_ = Hurried::asked;
      send(SIGTERM);
    } else if (hurried_ == Hurried::asked && waited > options_.leave_grace + options_.term_grace) {
      hurried_ = Hurried::killed;
      send(SIGKILL);
    }
  }

  // A rank that stands still cannot leave by itself, and is what the others waited for.
  void end_stopped() {
    for (size_t r = 0; r < children_.size(); ++r) {
      if (ended(children_[r]) || std::count(stopped_.begin(), stopped_.end(), int(r)) ||
          !is_stopped(children_[r].pid))
        continue;
      stopped_.push_back(int(r));
      kill(-children_[r].pid, SIGKILL);
    }
  }

  LaunchResult result() const {
    LaunchResult result;
    result.exits.resize(children_.size());
    std::vector<std::pair<int, int>> own;
    for (const auto& [rank, exit] : order_) {
      result.exits[size_t(rank)] = exit;
      if (!std::count(killed_by_us_.begin(), killed_by_us_.end(), rank)) own.emplace_back(rank, exit);
    }
    result.cause = cause_of(own);
    if (result.cause < 0) return result;
    result.exit = result.exits[size_t(result.cause)];
    if (result.exit == int(Exit::rank_lost) && !stopped_.empty()) {
      result.cause = stopped_.front();
      result.message = fmt::format(
          "rank {} (pid {}) was stopped by a signal such as SIGSTOP and did nothing any more; the others "
          "waited "
          "for it until the deadline, and it was ended",
          result.cause, children_[size_t(result.cause)].pid);
      return result;
    }
    result.message = result.exit > 128
                         ? fmt::format("rank {} was killed by signal {} ({})", result.cause,
                                       result.exit - 128, strsignal(result.exit - 128))
                         : fmt::format("rank {} ended with exit code {}", result.cause, result.exit);
    const std::string error = lines_.error_out_of_sight(size_t(result.cause));
    if (!error.empty()) result.message += ": " + error;
    return result;
  }

  const LaunchOptions& options_;
  const LaunchCallbacks& callbacks_;
  Signals signals_;
  Socket port_;  // held as long as the job runs, so that nobody else takes it between two attempts to listen
  std::string job_id_, token_;
  std::vector<ChildProcess> children_;
  std::vector<std::pair<int, int>> order_;  // rank and exit code, as they ended
  std::vector<int> killed_by_us_, stopped_;
  RankLines lines_;
  std::vector<int> passed_;  // signals
  Clock::time_point failed_at_ = Clock::time_point::max();
  enum class Hurried { no, asked, killed } hurried_ = Hurried::no;
};

}  // namespace

int cause_of(const std::vector<std::pair<int, int>>& rank_and_exit) {
  const auto first = [&](auto matches) {
    const auto it = std::find_if(rank_and_exit.begin(), rank_and_exit.end(),
                                 [&](const auto& e) { return matches(e.second); });
    return it == rank_and_exit.end() ? -1 : it->first;
  };
  constexpr int kLost = int(Exit::rank_lost), kStopped = int(Exit::stopped);
  int rank = first([](int exit) { return exit != 0 && exit != kLost && exit != kStopped; });
  if (rank < 0) rank = first([](int exit) { return exit == kLost; });
  if (rank < 0) rank = first([](int exit) { return exit == kStopped; });
  return rank;
}

LaunchResult launch_local(const LaunchOptions& options, const LaunchCallbacks& callbacks) {
  return Launch(options, callbacks).run();
}

}  // namespace cleave
