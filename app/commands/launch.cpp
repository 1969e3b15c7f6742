#include "launcher/launch.h"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <thread>

#include "app/commands.h"
#include "app/start/attempts.h"
#include "app/start/launch_options.h"
#include "app/start/launch_program.h"
#include "app/start/serve_host.h"
#include "core/error.h"
#include "core/secrets.h"
#include "launcher/launch_hosts.h"
#include "launcher/machine.h"
#include "launcher/memory_policy.h"
#include "launcher/placed_rank.h"
#include "launcher/role.h"
#include "launcher/shell_words.h"

namespace cleave::app {
namespace {

using namespace std::chrono_literals;

void say(const LaunchRequest& r, const std::string& text) {
  if (!r.quiet) std::fprintf(stderr, "launch: %s\n", text.c_str());
}

// Starts the program on a rank of another launcher, in this process.
int become_rank(const LaunchRequest& r, const launcher::Environment& env, const comm::RankInfo& info) {
  require(r.filter.num_nodes < 0 || r.filter.num_nodes == info.nodes, Exit::usage,
          "--num_nodes: conflicts with the launcher (got {}, but {} started this process as rank {} of {} on "
          "{} nodes); leave it out",
          r.filter.num_nodes, info.launched_by, info.rank, info.world, info.nodes);
  require(r.filter.num_gpus < 0 || r.filter.num_gpus == info.local_size, Exit::usage,
          "--num_gpus: conflicts with the launcher (got {}, but {} started this process as one of {} ranks "
          "on this host); leave it out",
          r.filter.num_gpus, info.launched_by, info.local_size);
  require(
      r.filter.include.empty() && r.filter.exclude.empty(), Exit::usage,
      "--include, --exclude: have no effect here, because {} has already placed this rank; leave them out",
      info.launched_by);
  const launcher::Program program = program_of(r, true);
  std::vector<std::string> command = program.before;
  if (program.local_rank) command.push_back(fmt::format("--local_rank={}", info.local_rank));
  command.insert(command.end(), program.after.begin(), program.after.end());
  const launcher::Environment more = launcher::adopted_environment(env, info);
  const launcher::Machine machine = launcher::this_machine({});
  const launcher::RankPlace place =
      r.no_bind ? launcher::RankPlace{} : launcher::adopted_place(info, command, env, machine);
  const std::string where = launcher::describe_place(place, machine.topology);
  if (info.rank == 0 || r.dry_run)
    say(r, fmt::format("rank {} of {}, started by {}: runs the program in this process{}", info.rank,
                       info.world, info.launched_by, where.empty() ? "" : ", on cores " + where));
  if (r.dry_run) {
    std::printf("%s\n", launcher::shown_command(more, "", command).c_str());
    return 0;
  }
  for (const auto& [name, value] : more) setenv(name.c_str(), value.c_str(), 1);
  launcher::take_place(place);
  become(command);
}

launcher::RemoteOptions remote_of(const LaunchRequest& r) {
  return {.kind = r.launcher,
          .args = launcher::shell_words(r.launcher_args, "--launcher_args"),
          .ssh_port = r.ssh_port,
          .program = this_program(),
          .this_host = launcher::own_host_name(),
          .mpirun = mpirun_of(r.launcher)};
}

void print(const LaunchStart& start, const LaunchRequest& r) {
  launcher::LaunchPlan shown = start.plan;
  if (!start.several) shown.nodes = {start.plan.nodes[start.node]};
  std::printf("%s", start.several
                        ? "# command to run on this host, and the commands that it runs on each host\n"
                        : "");
  for (const launcher::RemoteCommand& c : start.several ? launcher::remote_commands(start.plan, remote_of(r))
                                                        : std::vector<launcher::RemoteCommand>())
    std::printf("# %s\n", launcher::shell_quoted(without_secrets(c.command)).c_str());
  const launcher::Machine machine =
      start.several ? launcher::Machine{} : launcher::this_machine(shown.nodes[0]);
  std::fputs(launcher::describe(shown, machine).c_str(), stdout);
}

// /tmp/ID.deepspeed during the life of this process; programs that start launchers read it to find
// the process to stop. Any user may have put a link there, which is removed and never followed.
class PidFile {
 public:
  explicit PidFile(bool wanted) {
    if (!wanted) return;
    const std::string path = fmt::format("/tmp/{}.deepspeed", getpid()), text = fmt::format("{}", getpid());
    ::unlink(path.c_str());  // left by an earlier process
    const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    const bool written = fd >= 0 && ::write(fd, text.data(), text.size()) == ssize_t(text.size());
    const int error = errno;
    if (fd >= 0) path_ = path, ::close(fd);
    require(written, Exit::usage, "--save_pid: {} cannot be written: {}; remove the file or the option", path,
            std::strerror(error));
    std::printf("launcher pid: %d\n", getpid());
    std::fflush(stdout);
  }
  ~PidFile() {
    if (!path_.empty()) ::unlink(path_.c_str());
  }
  PidFile(const PidFile&) = delete;
  PidFile& operator=(const PidFile&) = delete;

 private:
  std::string path_;
};

// Prints cores and memory of each rank if a user requested binding, or if ranks are in different NUMA nodes.
void say_places(const LaunchStart& start, const LaunchRequest& r) {
  const launcher::NodeStart& node = start.plan.nodes[start.node];
  if (start.several || r.quiet) return;
  const launcher::Machine machine = launcher::this_machine(node);
  const std::vector<launcher::RankPlace> places = launcher::places_of(node, machine);
  const auto numa_node = [&](const launcher::RankPlace& place) {
    return launcher::memory_node(machine.topology, place.cores);
  };
  const bool differ = std::any_of(places.begin(), places.end(), [&](const launcher::RankPlace& place) {
    return numa_node(place) != numa_node(places[0]);
  });
  if (!differ && node.binding.how != launcher::Binding::How::asked) return;
  for (size_t i = 0; i < places.size(); ++i)
    say(r, fmt::format("rank {}: cores {}", node.ranks[i].rank,
                       launcher::describe_place(places[i], machine.topology)));
  if (differ && launcher::memory_policy() == launcher::MemoryPolicy::blocked)
    say(r,
        "memory is not bound to NUMA nodes, because the system does not permit set_mempolicy; start the "
        "container with --cap-add SYS_NICE");
}

launcher::LaunchResult launch_once(const LaunchStart& start, const LaunchRequest& r, const Attempts& attempts,
                                   int replacements) {
  launcher::LaunchCallbacks callbacks = {
      .output =
          [](std::string_view line, bool is_error) {
            std::fwrite(line.data(), 1, line.size(), is_error ? stderr : stdout);
            std::fflush(is_error ? stderr : stdout);
          },
      .say = [](const std::string& text) { std::fprintf(stderr, "launch: %s\n", text.c_str()); },
      .asks_to_save = [&attempts] { return attempts.found_better(); }};
  if (start.plan.nodes[start.node].ranks.front().command.front() != this_program())
    callbacks.when_asked =
        "a script exits, or saves first if it checks engine.stop_requested() or sets save_on_stop";
  launcher::StayOptions stay{.leave_grace = 3s, .term_grace = 1500ms};
  if (!start.several) {
    stay.replacements = replacements;
    stay.rank0_inherits_output = isatty(STDOUT_FILENO) != 0 && r.log_folder.empty();
    return launcher::launch_node(start.plan.nodes[start.node], stay, callbacks);
  }
  const launcher::RemoteOptions remote = remote_of(r);
  return launcher::starts_nodes(r.launcher)
             ? launcher::launch_hosts(start.plan, remote, stay, callbacks)
             : launch_by_other(launcher::remote_commands(start.plan, remote)[0], stay);
}

// Returns true for exit codes of permanent errors. A restart helps after a lost or killed rank, and
// perhaps after an unknown exit code of a program.
bool ends_for_good(const launcher::LaunchResult& result) {
  constexpr int kForGood[] = {0,
                              int(Exit::usage),
                              int(Exit::memory),
                              int(Exit::checkpoint),
                              int(Exit::data),
                              int(Exit::training),
                              int(Exit::stopped)};
  return result.asked_to_stop ||
         std::find(std::begin(kForGood), std::end(kForGood), result.exit) != std::end(kForGood);
}

// After a rank left because of a notice (launcher/notice.h), its host is soon gone.
constexpr auto kUntilGone = 60s;

int run(Attempts& attempts, const LaunchRequest& r) {
  std::signal(SIGPIPE, SIG_IGN);  // a reader of the output that goes away, as head does, ends no job
  const PidFile pid_file(r.save_pid);
  int attempt = attempts.now().plan.nodes[0].attempt;
  for (int restarts = 0;; ++attempt) {
    LaunchStart start = attempts.now();
    for (launcher::NodeStart& n : start.plan.nodes) n.attempt = attempt;
    attempts.watch();
    const launcher::LaunchResult result = launch_once(start, r, attempts, r.max_restarts - restarts);
    attempts.end_watch();
    attempt += result.replaced, restarts += result.replaced;
    if (!result.message.empty() && result.exit != int(Exit::stopped))
      std::fprintf(stderr, "error: %s\n", result.message.c_str());
    const bool saved = result.exit == int(Exit::stopped) && !result.asked_to_stop;
    const bool by_notice = saved && !result.asked_to_save && r.elastic;
    if (!(saved && attempts.found_better())) {
      if ((ends_for_good(result) && !by_notice) || restarts >= r.max_restarts) return result.exit;
      std::fprintf(stderr, "launch: restart %d of %d%s\n", ++restarts, r.max_restarts,
                   by_notice ? ", in 60 s: a host asked its ranks to stop" : "");
      if (by_notice) std::this_thread::sleep_for(kUntilGone);
    }
    attempts.next();
  }
}

int launch(const Arguments& arguments, bool as_deepspeed) {
  if (!arguments.empty() && (arguments[0] == "--node" || arguments[0] == "--rank"))
    return serve_host({arguments.begin(), arguments.end()});
  const std::optional<LaunchRequest> parsed = parse_launch(arguments);
  if (!parsed) return 0;
  const LaunchRequest& r = *parsed;
  require(!r.command.empty(), Exit::usage, "launch: no command; write it after {}",
          as_deepspeed ? "the options, as in: deepspeed --num_gpus 2 train.py"
                       : "--, as in: cleave launch -n 2 -- train ...");
  if (!as_deepspeed && !r.dashes && !r.module && !r.no_python && !r.command[0].ends_with(".py"))
    fail(Exit::usage, "launch: -- is missing before {}; write: cleave launch {} -- {}", r.command[0], r.typed,
         fmt::join(without_secrets(r.command), " "));
  const launcher::Environment env = launcher::environment_of_process();
  const bool makes = r.ranks > 0 || has_hostfile(r) || r.no_ssh || !r.world_info.empty();
  const launcher::LauncherRole role = makes ? launcher::LauncherRole{} : launcher::role_of_launcher(env);
  if (role.kind == launcher::LauncherRole::Kind::adopt) return become_rank(r, env, role.info);
  Attempts attempts(r, env, role,
                    [](const std::string& text) { std::fprintf(stderr, "launch: %s\n", text.c_str()); });
  const LaunchStart& start = attempts.now();
  const size_t ranks = size_t(start.plan.nodes[0].world), hosts = start.plan.nodes.size();
  if (r.ranks == 0 || r.dry_run)
    say(r, fmt::format(
               "{} rank{} on {} host{}{}: {}", ranks, ranks == 1 ? "" : "s", hosts, hosts == 1 ? "" : "s",
               start.several ? fmt::format(", by {}", launcher::name_of(r.launcher)) : "", start.plan.why));
  if (!r.dry_run) {
    say_places(start, r);
    return run(attempts, r);
  }
  print(start, r);
  return 0;
}

}  // namespace

int run_launch(const Arguments& arguments) { return launch(arguments, false); }
int run_deepspeed(const Arguments& arguments) { return launch(arguments, true); }

}  // namespace cleave::app
