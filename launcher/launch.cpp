#include "launcher/launch.h"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <set>

#include "core/range.h"
#include "launcher/board.h"
#include "launcher/children.h"
#include "launcher/flight_file.h"
#include "launcher/flight_report.h"
#include "launcher/heartbeat.h"
#include "launcher/job_id.h"
#include "launcher/passed_signals.h"
#include "launcher/placed_rank.h"
#include "launcher/rank_lines.h"
#include "launcher/rank_logs.h"
#include "launcher/rank_ports.h"
#include "launcher/shell_words.h"
#include "launcher/signals.h"

namespace cleave::launcher {
namespace {

constexpr int kMostRanks = 4096;  // on one host
constexpr std::chrono::milliseconds kFlightGrace{1500}, kLastLines{500};
// Time until a rank that others lost counts as hung, if it has not ended.
constexpr std::chrono::milliseconds kUntilHung{500};

class Launch {
 public:
  Launch(const NodeStart& node, const StayOptions& stay, const LaunchCallbacks& callbacks)
      : node_(node), stay_(stay), callbacks_(callbacks), lines_(int(node.ranks.size())) {
    require(!node.ranks.empty() && node.ranks.size() <= size_t(kMostRanks), Exit::usage,
            "-n: unsupported number of ranks on one machine (got {}, expected 1 to {})",
            int(node.ranks.size()), kMostRanks);
    for (const RankStart& r : node.ranks)
      require(!r.command.empty(), Exit::usage, "launch: no command; write it after --");
    if (node.ranks.front().rank == 0) ports_ = take_ports(node, stay.place);
    const std::vector<std::string>& command = node.ranks.front().command;
    if (stay.replacements > 0 && stay.place && node.nodes == 1 && takes_held_stops(command) &&
        (ports_.meeting || node.world == 1))
      board_.emplace(node.world, node.attempt);
    if (stay.place) places_ = places_of(node, this_machine(node));
    if (stay.control >= 0) fcntl(stay.control, F_SETFL, O_NONBLOCK);
  }

  ~Launch() {
    for (const ChildProcess& c : children_) {
      if (ended(c)) continue;
      kill(-c.pid, SIGKILL);
      waitpid(c.pid, nullptr, 0);
    }
  }

  LaunchResult run() {
    if (!node_.log_folder.empty()) logs_.emplace(node_.log_folder, node_.ranks);
    for (size_t i = 0; i < node_.ranks.size(); ++i) {
      children_.push_back(start_child(spec_of(i)));
      if (!board_) ports_.meeting.close();  // rank 0 started first and inherited it
    }
    while (order_.size() < children_.size()) {
      wait_for_news();
      while (const auto signal = signals_.next()) pass(*signal);
      if (callbacks_.asks_to_save && callbacks_.asks_to_save()) pass(SIGUSR1);
      if (board_) board_->collect();
      reap();
      end_hung();
      hurry();
      report_flights_when_due();
    }
    for (const ChildProcess& c : children_) kill(-c.pid, SIGKILL);  // processes that ranks left
    drain();
    if (!flights_.empty()) report_flights();
    return result();
  }

 private:
  // True for programs that call Job::end_when_asked. A stop signal before a rank's first line would kill it,
  // and schedulers that restart stopped jobs would count this as a failure.
  static bool takes_held_stops(const std::vector<std::string>& command) {
    return command.size() > 1 && command[1] == "train" && is_this_program(command);
  }

  ChildSpec spec_of(size_t index) const {
    const RankStart& rank = node_.ranks[index];
    Placed placed =
        stay_.place ? placed_rank(node_, index, ports_.master_port ? ports_.master_port : node_.master_port,
                                  places_[index])
                    : Placed{environment_of_process(), {}};
    if (!stay_.place)
      for (const auto& [name, value] : node_.environment) placed.environment[name] = value;
    if (ports_.meeting_port) placed.environment["CLEAVE_MEETING_PORT"] = std::to_string(ports_.meeting_port);
    const int inherits = rank.rank == 0 ? ports_.meeting.fd() : -1;
    if (inherits >= 0) placed.environment["CLEAVE_MEETING_FD"] = std::to_string(inherits);
    if (board_) {
      placed.environment["CLEAVE_BOARD"] = board_->place();
      placed.environment["CLEAVE_ATTEMPT"] = std::to_string(board_->attempt());
    }
    ChildSpec spec{rank.command,
                   {},
                   placed.place,
                   rank.rank == 0 && stay_.rank0_inherits_output,
                   false,
                   node_.folder,
                   inherits,
                   // mpirun ends its ranks on other hosts before it exits.
                   stay_.place ? SIGKILL : SIGTERM,
                   takes_held_stops(rank.command)};
    for (const auto& [name, value] : placed.environment) spec.environment.push_back(name + "=" + value);
    return spec;
  }

  void wait_for_news() {
    // For standard output, only the loss of its reader.
    std::vector<pollfd> polls = {{signals_.fd(), POLLIN, 0},
                                 {stay_.control, POLLIN, 0},
                                 {stay_.of_other_host ? STDOUT_FILENO : -1, 0, 0},
                                 {callbacks_.full ? callbacks_.full() : -1, POLLOUT, 0}};
    const size_t first = polls.size();
    const bool taken = polls[3].fd < 0;
    std::vector<std::pair<size_t, int>> sources;
    for (size_t r = 0; taken && r < children_.size(); ++r)
      for (int i : {0, 1})
        if (children_[r].output[i]) {
          polls.push_back({children_[r].output[i].fd(), POLLIN, 0});
          sources.emplace_back(r, i);
        }
    poll(polls.data(), polls.size(), 100);
    for (size_t i = 0; i < sources.size(); ++i)
      if (polls[first + i].revents) read_output(sources[i].first, sources[i].second);
    if (polls[1].revents && !alone_) read_control();
    if (polls[2].revents) alone_ = true;
  }

  // Reads lines of the launcher on another host.
  void read_control() {
    char buffer[256];
    const ssize_t n = read(stay_.control, buffer, sizeof(buffer));
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0) {
      alone_ = true;
      return;
    }
    heard_ = comm::Clock::now();
    told_.append(buffer, size_t(n));
    constexpr std::string_view kSignal = "signal ";
    for (size_t end; (end = told_.find('\n')) != std::string::npos; told_.erase(0, end + 1))
      if (told_.starts_with(kSignal)) pass(std::atoi(told_.c_str() + kSignal.size()));
  }

  void read_output(size_t rank, int which) {
    read_lines(children_[rank], which, [&](std::string_view text) {
      if (which == 1 && text.starts_with(kFlightLine))
        return take_flight(rank, text.substr(kFlightLine.size()));
      const auto line = lines_.take(rank, text, which == 1, node_.ranks[rank].rank);
      if (logs_)
        logs_->write(rank, text);
      else if (line && callbacks_.output)
        callbacks_.output(*line, which == 1);
    });
    if (lines_.stopped_early()) leave_until_ = std::min(leave_until_, comm::Clock::now() + stay_.leave_grace);
  }

  // Notes the file of a flight record. The report follows when all ranks of this host have written theirs, or
  // shortly after.
  void take_flight(size_t rank, std::string_view path) {
    flight_folder_ = std::filesystem::path(path).parent_path().string();
    flights_.insert(rank);
    if (flights_until_ == comm::Clock::time_point::max()) flights_until_ = comm::Clock::now() + kFlightGrace;
  }

  void report_flights_when_due() {
    const bool due =
        flights_.size() + order_.size() >= children_.size() || comm::Clock::now() > flights_until_;
    if (!flights_.empty() && due && leave_until_ == comm::Clock::time_point::max()) report_flights();
  }

  void report_flights() {
    if (flight_folder_.empty() || !callbacks_.say) return;
    try {
      std::map<int, int> exits;
      for (const auto& [index, exit] : order_)
        if (!std::count(killed_by_us_.begin(), killed_by_us_.end(), index))
          exits[node_.ranks[size_t(index)].rank] = exit;
      const FlightReport report = flight_report(read_flight_records(flight_folder_), exits);
      callbacks_.say(fmt::format("{}print it again with cleave report {}, with all stacks by --stacks",
                                 report.text, shell_quoted(flight_folder_)));
    } catch (const std::exception& e) {
      callbacks_.say(e.what());
    }
    flights_.clear(), flight_folder_.clear();
    flights_until_ = comm::Clock::time_point::max();
  }

  void drain() {
    const auto until = comm::Clock::now() + kLastLines;
    for (size_t r = 0; r < children_.size(); ++r) drain(r, until);
  }
  void drain(size_t r, comm::Clock::time_point until) {
    for (int i : {0, 1})
      while (children_[r].output[i] && comm::wait_for(children_[r].output[i].fd(), POLLIN, until))
        read_output(r, i);
  }

  void pass(int signal) {
    pass_on(signal, passed_, callbacks_, [this](int sent) { send(sent); });
  }

  // Sends a signal to the running ranks.
  void send(int signal) {
    // Only ranks handle SIGQUIT; it would end their children.
    for (const ChildProcess& c : children_)
      if (!ended(c)) kill(signal == SIGQUIT ? c.pid : -c.pid, signal);
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
      if (replace(r, exit)) continue;
      order_.emplace_back(int(r), exit);
      // A rank that the launcher killed is not a cause.
      const bool stopped = std::count(stopped_.begin(), stopped_.end(), int(r)) > 0;
      const bool killed = (stopped || hurried_ != Hurried::no) && WIFSIGNALED(status);
      if (killed) killed_by_us_.push_back(int(r));
      if (callbacks_.ended) callbacks_.ended(node_.ranks[r].rank, exit, killed);
      if (exit != 0) leave_until_ = std::min(leave_until_, comm::Clock::now() + stay_.grace_after(exit));
    }
  }

  // A rank that was lost, as opposed to one that ended with an error that it would meet again.
  static bool is_lost(int exit) {
    return exit > 128 || exit == int(Exit::internal) || exit == int(Exit::rank_lost);
  }

  // Starts a lost rank again while the others stay, if the launcher holds the state of all ranks.
  bool replace(size_t r, int exit) {
    if (!board_) return false;
    const bool able = is_lost(exit) && board_->holds_all() && order_.empty() && !passed_.asked_to_stop() &&
                      !alone_ && board_->attempt() != Board::kEnded;
    if (able && replaced_ == stay_.replacements && callbacks_.say)
      callbacks_.say(fmt::format("{}, and is not replaced: --max_restarts {} allows no further replacement",
                                 end_of_rank(node_.ranks[r].rank, exit), stay_.replacements));
    if (!able || replaced_ == stay_.replacements) {
      board_->end();
      return false;
    }
    ++replaced_;
    kill(-children_[r].pid, SIGKILL);  // processes that it left
    drain(r, comm::Clock::now() + kLastLines);
    const auto hung = std::find(stopped_.begin(), stopped_.end(), int(r));
    const int rank = node_.ranks[r].rank;
    board_->begin_attempt(
        {hung == stopped_.end() ? end_of_rank(rank, exit) : fmt::format("rank {} hung and was killed", rank),
         Board::now()});
    if (hung != stopped_.end()) stopped_.erase(hung);
    hung_since_ = comm::Clock::time_point::max();
    children_[r] = start_child(spec_of(r));
    return true;
  }

  // Ranks wait for the replacement of a rank that has not ended: it is stopped, or hangs. If all ranks wait,
  // each lost the others, and they connect again.
  void end_hung() {
    if (!board_ || !board_->holds_all() || board_->attempt() == Board::kEnded) return;
    std::vector<size_t> others;
    for (size_t r = 0; r < children_.size(); ++r)
      if (!board_->waits(node_.ranks[r].rank)) others.push_back(r);
    const auto now = comm::Clock::now();
    if (others.size() == children_.size())
      hung_since_ = comm::Clock::time_point::max();
    else
      hung_since_ = std::min(hung_since_, now);
    if (hung_since_ == comm::Clock::time_point::max() || now - hung_since_ < kUntilHung) return;
    if (replaced_ == stay_.replacements) return board_->end();
    if (others.empty()) {
      ++replaced_;
      return board_->begin_attempt({"the ranks lost the connection to each other", Board::now()});
    }
    for (const size_t r : others) {
      const bool late = now - hung_since_ > stay_.leave_grace;
      if (std::count(stopped_.begin(), stopped_.end(), int(r)) || !(late || is_stopped(children_[r].pid)))
        continue;
      stopped_.push_back(int(r));
      kill(-children_[r].pid, SIGKILL);
    }
  }

  // After a failure, the other ranks normally leave without help, because their connections break.
  void hurry() {
    if (stay_.heartbeat && comm::Clock::now() - heard_ > kLongestSilence) alone_ = true;
    const auto now = comm::Clock::now();
    if (alone_) leave_until_ = std::min(leave_until_, now);
    if (leave_until_ == comm::Clock::time_point::max()) return;
    end_stopped();
    if (hurried_ == Hurried::no && now >= leave_until_) {
      hurried_ = Hurried::asked;
      send(SIGTERM);
    } else if (hurried_ == Hurried::asked && now > leave_until_ + stay_.term_grace) {
      hurried_ = Hurried::killed;
      send(SIGKILL);
    }
  }

  // A stopped rank cannot leave, and the other ranks waited for it.
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
    result.asked_to_stop = passed_.asked_to_stop();
    result.asked_to_save = passed_.asked_to_save();
    result.alone = alone_;
    result.replaced = replaced_;
    result.exits.resize(children_.size());
    std::vector<std::pair<int, int>> own;
    for (const auto& [index, exit] : order_) {
      result.exits[size_t(index)] = exit;
      if (!std::count(killed_by_us_.begin(), killed_by_us_.end(), index)) own.emplace_back(index, exit);
    }
    int cause = lines_.who_said(cause_of(own), own);
    if (cause < 0) return result;
    for (const auto& [index, exit] : own)
      if (exit == result.exits[size_t(cause)] &&
          node_.ranks[size_t(index)].rank == lines_.origin_of(size_t(cause))) {
        cause = index;
        break;
      }
    result.exit = result.exits[size_t(cause)];
    result.cause = node_.ranks[size_t(cause)].rank;
    if (result.exit == int(Exit::rank_lost) && !stopped_.empty()) {
      result.cause = node_.ranks[size_t(stopped_.front())].rank;
      result.message = fmt::format(
          "rank {} (pid {}) hung: a signal such as SIGSTOP stopped it, and the other ranks waited until the "
          "deadline; it was killed",
          result.cause, children_[size_t(stopped_.front())].pid);
      return result;
    }
    if (passed_.killed() && result.exit == 128 + SIGKILL) {
      result.message = kKilledOnRequest;
      return result;
    }
    const std::string error = lines_.error_of(size_t(cause), result.exit);
    const bool on_terminal = stay_.rank0_inherits_output && result.exits[0] == result.exit;
    if (error.empty() && on_terminal && result.exit <= int(Exit::data))
      return result;  // rank 0 has printed the reason
    result.message = end_of_rank(result.cause, result.exit) + (error.empty() ? "" : ": " + error);
    if (const int left = left_before(cause, own); left >= 0) {
      result.cause = node_.ranks[size_t(left)].rank;
      result.message = fmt::format("{} while the others still ran; {}",
                                   end_of_rank(result.cause, result.exits[size_t(left)]), result.message);
    }
    return result;
  }

  const NodeStart& node_;
  const StayOptions& stay_;
  const LaunchCallbacks& callbacks_;
  Signals signals_;
  RankPorts ports_;
  std::optional<Board> board_;  // for ranks that are replaced
  int replaced_ = 0;
  comm::Clock::time_point hung_since_ =
      comm::Clock::time_point::max();  // ranks wait for one that has not ended
  std::vector<RankPlace> places_;      // by index, as node_.ranks
  std::vector<ChildProcess> children_;
  std::optional<RankLogs> logs_;
  std::vector<std::pair<int, int>> order_;  // index and exit code in order of their ends
  std::vector<int> killed_by_us_, stopped_;
  RankLines lines_;
  std::set<size_t> flights_;  // ranks by index that wrote a flight record since the last report
  std::string flight_folder_;
  comm::Clock::time_point flights_until_ = comm::Clock::time_point::max();
  PassedSignals passed_;
  std::string told_;                                    // incomplete line of the other launcher
  bool alone_ = false;                                  // that launcher is lost
  comm::Clock::time_point heard_ = comm::Clock::now();  // time of its last line
  comm::Clock::time_point leave_until_ =
      comm::Clock::time_point::max();  // for ranks to leave after a failure
  enum class Hurried { no, asked, killed } hurried_ = Hurried::no;
};

}  // namespace

LaunchResult launch_node(const NodeStart& node, const StayOptions& stay, const LaunchCallbacks& callbacks) {
  return Launch(node, stay, callbacks).run();
}

LaunchResult launch_local(const LaunchOptions& options, const LaunchCallbacks& callbacks) {
  require(options.ranks >= 1 && options.ranks <= kMostRanks, Exit::usage,
          "-n: unsupported number of ranks on one machine (got {}, expected 1 to {})", options.ranks,
          kMostRanks);
  NodeStart node;
  node.master_port = options.port;
  node.job_id = options.job_id.empty() ? new_job_id() : options.job_id;
  node.token = new_token();
  node.attempt = options.attempt;
  node.environment = options.environment;
  node.binding.how = options.bind_cores ? Binding::How::share : Binding::How::none;
  node.world = options.ranks;
  for (int r = 0; r < options.ranks; ++r) node.ranks.push_back({r, r, r, options.command});
  return launch_node(node,
                     {.rank0_inherits_output = options.rank0_inherits_output,
                      .leave_grace = options.leave_grace,
                      .term_grace = options.term_grace},
                     callbacks);
}

}  // namespace cleave::launcher
