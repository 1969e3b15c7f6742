#include "launcher/remote_commands.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>

#include "config_schema/base64.h"
#include "core/error.h"
#include "launcher/shell_words.h"

namespace cleave::launcher {
namespace {

using Words = std::vector<std::string>;

constexpr std::array<std::string_view, 7> kNames = {"ssh",  "pdsh",    "openmpi", "mpich",
                                                    "impi", "mvapich", "slurm"};
constexpr size_t kLongestVariable = 120 << 10;  // the kernel's limit is 128 KiB

std::string job_of(const LaunchPlan& plan) {
  std::string job = config::encode_base64(encode(plan.nodes));
  require(job.size() <= kLongestVariable, Exit::usage,
          "--launcher: the job description is too large for an environment variable (got {} bytes); use "
          "--launcher ssh, which supports any size",
          job.size());
  return job;
}

Words join(std::initializer_list<Words> parts) {
  Words all;
  for (const Words& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

// "h1:2,h2:1"
std::string hosts_with_counts(const LaunchPlan& plan) {
  std::string list;
  for (const NodeStart& n : plan.nodes)
    list += fmt::format("{}{}:{}", list.empty() ? "" : ",", n.host, n.ranks.size());
  return list;
}

std::string host_list(const LaunchPlan& plan) {
  Words names;
  for (const NodeStart& n : plan.nodes) names.push_back(n.host);
  return fmt::format("{}", fmt::join(names, ","));
}

std::string input_of(const std::vector<NodeStart>& nodes) {
  const std::string job = encode(nodes);
  return fmt::format("{}\n{}", job.size(), job);
}

std::vector<RemoteCommand> by_ssh(const LaunchPlan& plan, const RemoteOptions& o) {
  std::vector<RemoteCommand> list;
  const Words port = o.ssh_port ? Words{"-p", std::to_string(o.ssh_port)} : Words{};
  for (const NodeStart& n : plan.nodes) {
    const Words node = {o.program, "launch", "--node"};
    // ssh uses the first value of an option, so the user's options come before ours.
    const Words far =
        join({{"ssh"},
              o.args,
              port,
              {"-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=3", "-o",
               "ServerAliveCountMax=3", "--", n.host, "exec " + shell_quoted(node)}});
    RemoteCommand c{n.host == "localhost" || n.host == o.this_host ? node : far};
    c.input = input_of({n});
    list.push_back(std::move(c));
  }
  return list;
}

std::vector<RemoteCommand> by_pdsh(const LaunchPlan& plan, const RemoteOptions& o) {
  std::string command;
  for (const char c : "exec " + shell_quoted(Words{o.program, "launch", "--node"}))
    command += c == '%' ? "%%" : std::string(1, c);  // pdsh expands percent signs
  command += " %n";
  RemoteCommand c{
      join({{"pdsh", "-S", "-N", "-f", "1024", "-R", "ssh"}, o.args, {"-w", host_list(plan), command}})};
  c.environment = {{kJobVariable, job_of(plan)},
                   {"PDSH_SSH_ARGS_APPEND",
                    fmt::format("-o SendEnv={} -o ServerAliveInterval=3 -o ServerAliveCountMax=3{}",
                                kJobVariable, o.ssh_port ? fmt::format(" -p {}", o.ssh_port) : "")}};
  return {c};
}

std::vector<RemoteCommand> by_mpi(const LaunchPlan& plan, const RemoteOptions& o) {
  const std::string world = std::to_string(plan.nodes.front().world);
  const Words rank = {o.program, "launch", "--rank"};
  const auto with_job = [&](Words command, std::map<std::string, std::string> environment = {}) {
    environment[kJobVariable] = job_of(plan);
    return std::vector<RemoteCommand>{{std::move(command), std::move(environment)}};
  };
  switch (o.kind) {
    case LauncherKind::openmpi:
      return with_job(join({{o.mpirun, "-n", world, "--host", hosts_with_counts(plan), "--bind-to", "none",
                             "-x", kJobVariable},
                            o.args,
                            rank}));
    case LauncherKind::mpich:
      return with_job(
          join({{o.mpirun, "-n", world, "-hosts", hosts_with_counts(plan), "-genvall"}, o.args, rank}));
    case LauncherKind::mvapich:  // its binding would undo that of the rank
      return with_job(
          join({{o.mpirun, "-n", world, "-hosts", hosts_with_counts(plan), "-genvall"}, o.args, rank}),
          {{"MV2_ENABLE_AFFINITY", "0"}});
    case LauncherKind::impi: {
      Words command = join({{o.mpirun, "-genvall", "-genv", "I_MPI_PIN", "0"}, o.args});
      for (const NodeStart& n : plan.nodes)
        command = join({command,
                        n.node == 0 ? Words{} : Words{":"},
                        {"-n", std::to_string(n.ranks.size()), "-host", n.host},
                        rank});
      return with_job(command);
    }
    default:
      break;
  }
  fail(Exit::internal, "{}: unknown launcher", name_of(o.kind));
}

// One task per host, with srun's standard input. Overrides cluster configurations that end all tasks with the
// first one, because other launchers must be able to end their ranks.
std::vector<RemoteCommand> by_slurm(const LaunchPlan& plan, const RemoteOptions& o) {
  const std::string hosts = std::to_string(plan.nodes.size());
  return {{join({{"srun", "-n", hosts, "--nodes", hosts, "--ntasks-per-node", "1", "--nodelist",
                  host_list(plan), "--overlap", "--cpu-bind", "none", "--mpi", "none", "--export", "ALL",
                  "--kill-on-bad-exit=0", "--wait", "0"},
                 o.args,
                 {o.program, "launch", "--node"}}),
           {},
           input_of(plan.nodes)}};
}

}  // namespace

LauncherKind parse_launcher(std::string_view name) {
  std::string lower(name);
  for (char& c : lower) c = char(std::tolower(uint8_t(c)));
  const auto at = std::find(kNames.begin(), kNames.end(), lower);
  require(at != kNames.end(), Exit::usage, "--launcher: unknown launcher (got {}, expected one of {})", name,
          fmt::join(kNames, ", "));
  return LauncherKind(at - kNames.begin());
}

std::string_view name_of(LauncherKind kind) { return kNames[size_t(kind)]; }

std::vector<RemoteCommand> remote_commands(const LaunchPlan& plan, const RemoteOptions& options) {
  switch (options.kind) {
    case LauncherKind::ssh:
      return by_ssh(plan, options);
    case LauncherKind::pdsh:
      return by_pdsh(plan, options);
    case LauncherKind::slurm:
      return by_slurm(plan, options);
    default:
      return by_mpi(plan, options);
  }
}

}  // namespace cleave::launcher
