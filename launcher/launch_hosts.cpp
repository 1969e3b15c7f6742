#include "launcher/launch_hosts.h"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <sstream>

#include "launcher/children.h"
#include "launcher/discovery.h"
#include "launcher/heartbeat.h"
#include "launcher/passed_signals.h"
#include "launcher/pieces.h"
#include "launcher/rank_lines.h"
#include "launcher/signals.h"

namespace cleave::launcher {
namespace {

// Connection to one host, or to all of them.
struct Way {
  std::string name;  // host, or launcher of all hosts
  std::vector<int> ranks;
  ChildProcess process;
  std::string unsent;
  bool told = false;       // its part of the job is sent
  std::string last_error;  // from the launcher or ssh, not from a rank
  bool ended = false;
  int exit = 0;
  int cause = -1;       // reported by the launcher there
  std::string message;  // about the cause
};

class HostsLaunch {
 public:
  HostsLaunch(const LaunchPlan& plan, const RemoteOptions& remote, const StayOptions& stay,
              const LaunchCallbacks& callbacks)
      : plan_(plan),
        remote_(remote),
        stay_(stay),
        callbacks_(callbacks),
        world_(plan.nodes.front().world),
        lines_(world_) {}

  ~HostsLaunch() {
    for (const Way& w : ways_) {
      if (w.ended) continue;
      kill(-w.process.pid, SIGKILL);
      waitpid(w.process.pid, nullptr, 0);
    }
  }

  LaunchResult run() {
    start();
    while (std::any_of(ways_.begin(), ways_.end(), [](const Way& w) { return !w.ended; })) {
      wait_for_news();
      while (const auto signal = signals_.next())
        pass_on(*signal, passed_, callbacks_, [this](int sent) { send(sent); });
      if (callbacks_.asks_to_save && callbacks_.asks_to_save())
        pass_on(SIGUSR1, passed_, callbacks_, [this](int sent) { send(sent); });
      reap();
      hurry();
      beat();
    }
    return result();
  }

 private:
  void start() {
    const std::vector<RemoteCommand> commands = remote_commands(plan_, remote_);
    for (size_t i = 0; i < commands.size(); ++i) {
      Way w;
      const bool all = commands.size() < plan_.nodes.size();
      w.name = all ? std::string(name_of(remote_.kind)) : plan_.nodes[i].host;
      for (size_t n = all ? 0 : i; n < (all ? plan_.nodes.size() : i + 1); ++n)
        for (const RankStart& r : plan_.nodes[n].ranks) w.ranks.push_back(r.rank);
      Environment env = environment_of_process();
      for (const auto& [name, value] : commands[i].environment)  // some are appended to the user's values
        env[name] = name.ends_with("_APPEND") && env.count(name) ? env[name] + " " + value : value;
      ChildSpec spec{commands[i].command, {}, {}, false, !commands[i].input.empty(), {}};
      // srun must outlive this process: it signals the end of input to the hosts' launchers and ends after
      // them.
      if (remote_.kind == LauncherKind::slurm) spec.parent_death = 0;
      for (const auto& [name, value] : env) spec.environment.push_back(name + "=" + value);
      w.process = start_child(spec);
      if (w.process.input) fcntl(w.process.input.fd(), F_SETFL, O_NONBLOCK);
      w.unsent = commands[i].input;
      ways_.push_back(std::move(w));
    }
  }

  void wait_for_news() {
    std::vector<pollfd> polls = {{signals_.fd(), POLLIN, 0}};
    std::vector<std::pair<Way*, int>> sources;
    for (Way& w : ways_) {
      for (int i : {0, 1})
        if (w.process.output[i]) {
          polls.push_back({w.process.output[i].fd(), POLLIN, 0});
          sources.emplace_back(&w, i);
        }
      if (w.process.input && !w.unsent.empty()) {
        polls.push_back({w.process.input.fd(), POLLOUT, 0});
        sources.emplace_back(&w, 2);
      }
    }
    poll(polls.data(), polls.size(), 100);
    for (size_t i = 0; i < sources.size(); ++i) {
      if (!polls[i + 1].revents) continue;
      if (sources[i].second == 2)
        write_to(*sources[i].first);
      else
        read_from(*sources[i].first, sources[i].second);
    }
  }

  static void write_to(Way& w) {
    const ssize_t n = write(w.process.input.fd(), w.unsent.data(), w.unsent.size());
    if (n > 0) w.unsent.erase(0, size_t(n));
    if (w.unsent.empty()) w.told = true;
    if (n < 0 && errno != EAGAIN && errno != EINTR) w.process.input.close();  // its exit gives the reason
  }

  void read_from(Way& w, int which) {
    read_lines(w.process, which, [&](std::string_view line) { take_line(w, line, which == 1); });
  }

  void take_line(Way& w, std::string_view line, bool is_error) {
    if (line.starts_with(kNodeWord)) return take_word(w, std::string(line.substr(1)));
    const auto [rank, at] = rank_of_line(line, world_);
    std::optional<std::string> text;
    if (rank >= 0) {
      const auto whole = pieces_[is_error].take(rank, line.substr(at));
      if (whole) text = lines_.take(size_t(rank), *whole, is_error);
    } else {
      text = fmt::format("[{}] {}", w.name, line);
    }
    if (rank < 0 && is_error) w.last_error = line.substr(0, line.find_last_not_of("\r\n") + 1);
    if (text && callbacks_.output) callbacks_.output(*text, is_error);
    if (lines_.stopped_early()) leave_until_ = std::min(leave_until_, comm::Clock::now() + stay_.leave_grace);
  }

  // Handles "ended RANK EXIT KILLED", "result CAUSE MESSAGE", and "done NODE" at the end of each stream.
  void take_word(Way& w, const std::string& line) {
    std::istringstream in(line);
    std::string word;
    int rank = -1, exit = 0;
    bool killed = false;
    in >> word >> rank;
    if (word == "result") {
      w.cause = rank;
      std::getline(in >> std::ws, w.message);
      return;
    }
    const bool known = rank >= 0 && size_t(rank) < plan_.nodes.size();
    if (word == "done" && known && ++done_[rank] == 2) w.unsent += fmt::format("bye {}\n", rank);
    in >> exit >> killed;
    if (word != "ended" || in.fail() || !std::count(w.ranks.begin(), w.ranks.end(), rank) ||
        exits_.count(rank))
      return;
    exits_[rank] = exit;
    // A rank that this launcher ended is not a cause, even if the host's launcher delivered the signal.
    const bool by_us = killed || (hurried_ != Hurried::no && exit > 128);
    if (!by_us) order_.emplace_back(rank, exit);
    if (callbacks_.ended) callbacks_.ended(rank, exit, killed);
    if (exit != 0) fail(exit);
  }

  void fail(int exit) { leave_until_ = std::min(leave_until_, comm::Clock::now() + stay_.grace_after(exit)); }

  void reap() {
    for (Way& w : ways_) {
      int status = 0;
      if (w.ended || waitpid(w.process.pid, &status, WNOHANG) != w.process.pid) continue;
      for (int i : {0, 1})  // remaining pipe contents; a grandchild may keep the pipes open
        while (w.process.output[i] && comm::wait_for(w.process.output[i].fd(), POLLIN,
                                                     comm::Clock::now() + std::chrono::milliseconds(200)))
          read_from(w, i);
      w.ended = true;
      w.exit = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
      const bool all_ended =
          std::all_of(w.ranks.begin(), w.ranks.end(), [&](int r) { return exits_.count(r) > 0; });
      if (!all_ended && !lost_ && hurried_ == Hurried::no) lost_ = size_t(&w - ways_.data());
      if (!all_ended || w.exit != 0) fail(w.exit);
    }
  }

  void send(int signal) {
    for (Way& w : ways_) {
      if (w.ended) continue;
      if (w.process.input)
        w.unsent += fmt::format("signal {}\n", signal);
      else if (signal != SIGUSR1)
        kill(-w.process.pid, signal);  // the hosts' launchers detect the loss of their reader
    }
  }

  // Acts as for local ranks; a launcher that does not react is disconnected, which ends its ranks.
  void hurry() {
    if (leave_until_ == comm::Clock::time_point::max()) return;
    const auto late = comm::Clock::now() - leave_until_;
    if (hurried_ == Hurried::no && late > comm::Clock::duration(0)) {
      hurried_ = Hurried::asked;
      send(SIGTERM);
    } else if (hurried_ == Hurried::asked && late > stay_.term_grace) {
      hurried_ = Hurried::killed;
      for (Way& w : ways_) w.process.input.close();
    } else if (hurried_ == Hurried::killed && late > 3 * stay_.term_grace) {
      for (const Way& w : ways_)  // srun ends its processes, unless it is killed
        if (!w.ended) kill(-w.process.pid, late > 5 * stay_.term_grace ? SIGKILL : SIGTERM);
    }
  }

  // Starts after the job is sent: a line between its pieces would become part of it. Later messages fit into
  // one atomic write to a pipe.
  void beat() {
    std::vector<int> listening;
    for (const Way& w : ways_)
      if (!w.ended && w.told && w.process.input) listening.push_back(w.process.input.fd());
    if (listening == listening_) return;
    listening_ = listening;
    heartbeat_.reset();  // first, so that it does not keep closed descriptors open
    if (!listening.empty()) heartbeat_.emplace(listening);
  }

  LaunchResult result() const {
    LaunchResult result;
    result.asked_to_stop = passed_.asked_to_stop();
    result.asked_to_save = passed_.asked_to_save();
    for (int r = 0; r < world_; ++r)
      result.exits.push_back(exits_.count(r) ? exits_.at(r) : int(Exit::rank_lost));
    result.cause = lines_.who_said(cause_of(order_), order_);
    if (const int origin = result.cause < 0 ? -1 : lines_.origin_of(size_t(result.cause));
        exits_.count(origin) && exits_.at(origin) == exits_.at(result.cause))
      result.cause = origin;
    const int exit = result.cause < 0 ? 0 : exits_.at(result.cause);
    if (lost_ && (exit == 0 || exit == int(Exit::rank_lost) || exit == int(Exit::stopped)))
      return lost_host(std::move(result));
    if (result.cause < 0) return result;
    result.exit = exit;
    if (passed_.killed() && exit == 128 + SIGKILL) {
      result.message = kKilledOnRequest;
      return result;
    }
    const auto way = std::find_if(ways_.begin(), ways_.end(), [&](const Way& w) {
      return std::count(w.ranks.begin(), w.ranks.end(), result.cause) > 0;
    });
    const std::string rank = fmt::format("rank {} ", result.cause), end = end_of_rank(result.cause, exit);
    const std::string said =
        way->cause == result.cause && way->message.starts_with(rank) ? way->message : end;
    const std::string error = said == end ? lines_.error_of(size_t(result.cause), exit) : "";
    result.message = fmt::format("{}on {} {}{}{}", rank, host_of(result.cause), said.substr(rank.size()),
                                 error.empty() ? "" : ": ", error);
    if (const int left = left_before(result.cause, order_); left >= 0) {
      result.cause = left;
      result.message = fmt::format("{} on {} while the others still ran; {}",
                                   end_of_rank(left, exits_.at(left)), host_of(left), result.message);
    }
    return result;
  }

  // A launcher that reports its own error (2: arguments, 3: memory) has not started its ranks; ssh's code is
  // 255, srun's 1.
  LaunchResult lost_host(LaunchResult result) const {
    const Way& w = ways_[*lost_];
    const bool own = w.exit == int(Exit::usage) || w.exit == int(Exit::memory);
    result.exit = own ? w.exit : int(Exit::rank_lost);
    result.cause = w.ranks.front();
    result.message = fmt::format("{} {}: {} ended with {} {}{}{}", w.name,
                                 own ? "rejected its part of the job" : "is unreachable or was lost",
                                 own || remote_.kind != LauncherKind::ssh ? "the launcher" : "ssh",
                                 w.exit > 128 && w.exit < 255 ? "signal" : "exit code",
                                 w.exit > 128 && w.exit < 255 ? w.exit - 128 : w.exit,
                                 w.last_error.empty() ? "" : ": ", w.last_error);
    return result;
  }

  const std::string& host_of(int rank) const {
    return std::find_if(plan_.nodes.begin(), plan_.nodes.end(),
                        [&](const NodeStart& n) { return rank <= n.ranks.back().rank; })
        ->host;
  }

  const LaunchPlan& plan_;
  const RemoteOptions& remote_;
  const StayOptions& stay_;
  const LaunchCallbacks& callbacks_;
  const int world_;
  Signals signals_;
  std::vector<Way> ways_;
  std::map<int, int> exits_;                // by rank
  std::vector<std::pair<int, int>> order_;  // possible causes in order of their ends
  std::optional<size_t> lost_;              // first connection that ended before its ranks
  RankLines lines_;
  Pieces pieces_[2];         // of standard output and standard error
  std::map<int, int> done_;  // ended streams by node
  PassedSignals passed_;
  std::vector<int> listening_;  // hosts that receive the heartbeat
  std::optional<Heartbeat> heartbeat_;
  comm::Clock::time_point leave_until_ =
      comm::Clock::time_point::max();  // for ranks to leave after a failure
  enum class Hurried { no, asked, killed } hurried_ = Hurried::no;
};

}  // namespace

LaunchResult launch_hosts(const LaunchPlan& plan, const RemoteOptions& remote, const StayOptions& stay,
                          const LaunchCallbacks& callbacks) {
  signal(SIGPIPE, SIG_IGN);  // from a lost host
  return HostsLaunch(plan, remote, stay, callbacks).run();
}

}  // namespace cleave::launcher
