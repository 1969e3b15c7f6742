#include "app/start/attempts.h"

#include <fmt/ranges.h>
#include <signal.h>

#include <algorithm>
#include <iterator>

#include "app/start/ssh_hosts.h"
#include "config_schema/read_config.h"
#include "core/error.h"

namespace cleave::app {
namespace {

using launcher::Hosts;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kLook = 10s;  // between looks for better hosts; two in a row must find them
constexpr auto kRetry = 5s;  // while too few hosts answer
constexpr auto kPatience = 10min;

// Returns the value of --deepspeed_config in the ranks' command, or an empty string.
std::string config_of(const LaunchRequest& r) {
  for (const char* name : {"--deepspeed_config", "--deepspeed-config"})
    for (size_t i = 0; i < r.command.size(); ++i) {
      const std::string& word = r.command[i];
      if (word == name && i + 1 < r.command.size()) return r.command[i + 1];
      if (word.starts_with(std::string(name) + "=")) return word.substr(word.find('=') + 1);
    }
  return {};
}

// Number of errors of the configuration for this number of ranks. Some may have other causes, such as options
// that only the ranks know.
int64_t errors_for(const std::string& config, int ranks) {
  const config::ReadResult read =
      config::read_ds_config_file(config, {.world_size = ranks, .steps_may_be_open = true});
  return std::count_if(read.problems.begin(), read.problems.end(), [](const auto& p) { return !p.warning; });
}

// Returns the largest number of hosts over which the configuration divides; all, if it divides over none.
size_t hosts_that_divide(const Hosts& hosts, size_t least, const std::string& config) {
  size_t best = hosts.size();
  int64_t fewest = errors_for(config, ranks_of(hosts));
  for (size_t n = hosts.size(); n-- > std::max<size_t>(least, 1) && fewest > 0;) {
    const int64_t errors = errors_for(config, ranks_of(Hosts(hosts.begin(), hosts.begin() + long(n))));
    if (errors < fewest) fewest = errors, best = n;
  }
  return best;
}

std::string names_of(const Hosts& hosts) {
  std::vector<std::string> names;
  for (const launcher::Host& h : hosts) names.push_back(h.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

// Hosts of `all` that are not in `some`.
Hosts without(const Hosts& all, const Hosts& some) {
  Hosts out;
  std::copy_if(all.begin(), all.end(), std::back_inserter(out),
               [&](const launcher::Host& h) { return std::find(some.begin(), some.end(), h) == some.end(); });
  return out;
}

std::string counted(const Hosts& hosts) {
  return fmt::format("{} host{} with {} ranks", hosts.size(), hosts.size() == 1 ? "" : "s", ranks_of(hosts));
}

}  // namespace

Attempts::Attempts(const LaunchRequest& request, const launcher::Environment& env,
                   const launcher::LauncherRole& role, Say say)
    : request_(request),
      env_(env),
      of_other_launcher_(role.kind == launcher::LauncherRole::Kind::node),
      say_(std::move(say)),
      job_(new_job_name()) {
  if (of_other_launcher_)
    now_ = start_of_node(request, env, role.info);
  else if (request.elastic && reads_hostfile() && !request.dry_run)
    now_ = start_of(request, env, job_, enough_hosts());
  else
    now_ = start_of(request, env, job_);
}

bool Attempts::reads_hostfile() const {
  return !of_other_launcher_ && request_.ranks == 0 && request_.world_info.empty() && !request_.no_ssh &&
         has_hostfile(request_);
}

void Attempts::next() {
  found_better_ = false;
  if (!reads_hostfile()) return;
  const Hosts before = now_.hosts;
  try {
    now_ = start_of(request_, env_, job_, request_.elastic ? enough_hosts() : named_hosts(request_));
  } catch (const Error& e) {
    if (request_.elastic || e.exit() != Exit::usage) throw;
    say_(fmt::format("{}; the job restarts on the same hosts", e.what()));  // perhaps half written
  }
  if (now_.hosts != before)
    say_(fmt::format("continues on {}: {}", counted(now_.hosts), names_of(now_.hosts)));
}

// Waits until enough hosts answer.
Hosts Attempts::enough_hosts() const {
  const size_t least = size_t(std::max(1, request_.min_nodes));
  bool said = false;
  for (const auto until = Clock::now() + kPatience;;) {
    const Hosts all = named_hosts(request_), here = answering(all, request_);
    const Hosts use = chosen(here, true);
    if (const Hosts silent = without(all, here); !silent.empty() && !said)
      say_(
          fmt::format("{} of {} hosts answer; no answer from {}", here.size(), all.size(), names_of(silent)));
    if (use.size() >= least) return use;
    require(
        Clock::now() < until, Exit::rank_lost,
        "{}: too few hosts answer (got {}, expected at least {}); start them, or lower --min_elastic_nodes",
        request_.hostfile, use.size(), least);
    if (!said) say_(fmt::format("waits up to 10 minutes for at least {} hosts", least));
    said = true;
    std::this_thread::sleep_for(kRetry);
  }
}

Hosts Attempts::chosen(Hosts hosts, bool says) const {
  if (request_.max_nodes > 0 && hosts.size() > size_t(request_.max_nodes))
    hosts.resize(size_t(request_.max_nodes));
  const std::string config = config_of(request_);
  if (config.empty() || hosts.size() < 2) return hosts;
  const size_t fit = hosts_that_divide(hosts, size_t(std::max(1, request_.min_nodes)), config);
  if (says && fit < hosts.size())
    say_(fmt::format("uses {} of {} hosts, because {} does not divide over {} ranks", fit, hosts.size(),
                     config, ranks_of(hosts)));
  hosts.resize(fit);
  return hosts;
}

// Returns true if a restart would get more ranks, or leave a host that the hostfile no longer has. Hosts of
// this attempt count as answering.
bool Attempts::better_exist() const {
  const Hosts all = named_hosts(request_), others = without(all, now_.hosts);
  const Hosts silent = without(others, answering(others, request_));
  const Hosts use = chosen(without(all, silent), false);
  return use.size() >= size_t(std::max(1, request_.min_nodes)) &&
         (ranks_of(use) > ranks_of(now_.hosts) || !without(now_.hosts, all).empty());
}

void Attempts::watch() {
  found_better_ = false;
  if (!request_.elastic || !reads_hostfile()) return;
  ending_ = false;
  looks_ = std::thread([this] { look_until_ended(); });
}

void Attempts::end_watch() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  end_.notify_all();
  if (looks_.joinable()) looks_.join();
}

void Attempts::look_until_ended() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);  // the launcher takes signals on its thread
  int in_a_row = 0;
  std::unique_lock lock(mutex_);
  while (!end_.wait_for(lock, kLook, [&] { return ending_; })) {
    lock.unlock();
    try {
      in_a_row = better_exist() ? in_a_row + 1 : 0;
    } catch (const Error&) {
      in_a_row = 0;  // a hostfile that is being written
    }
    if (in_a_row == 2) {
      say_("other hosts are available; the ranks save and stop, and the job continues on these");
      found_better_ = true;
      return;
    }
    lock.lock();
  }
}

}  // namespace cleave::app
