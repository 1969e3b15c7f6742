// Commands that this machine executes to reach other hosts, for each kind of launcher. A pure function, so
// that tests need not start them. No secret and no user value is on a command line, which every user of a
// machine can list: the job travels through standard input or the environment.
#pragma once
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/launch_plan.h"

namespace cleave::launcher {

enum class LauncherKind { ssh, pdsh, openmpi, mpich, impi, mvapich, slurm };

// Accepts any case. Throws Error(usage) with the list of kinds.
LauncherKind parse_launcher(std::string_view name);
std::string_view name_of(LauncherKind kind);

// ssh starts one launcher per host, pdsh and srun start all of them; the other kinds start each rank.
inline bool starts_nodes(LauncherKind kind) {
  return kind == LauncherKind::ssh || kind == LauncherKind::pdsh || kind == LauncherKind::slurm;
}

struct RemoteOptions {
  LauncherKind kind = LauncherKind::ssh;
  std::vector<std::string> args = {};  // of the user; before ours
  int ssh_port = 0;                    // 0: from ssh's configuration
  std::string program = "cleave";      // this program, at the same path on every host
  std::string this_host = {};          // reached without ssh, like localhost
  std::string mpirun = "mpirun";       // of the kind's MPI
};

struct RemoteCommand {
  std::vector<std::string> command;                     // argv
  std::map<std::string, std::string> environment = {};  // added to this process's environment
  std::string input = {};                               // written to its standard input first
};

// Variable for the whole job if standard input is not available. sshd accepts its name by default (AcceptEnv
// LC_*).
inline constexpr const char* kJobVariable = "LC_CLEAVE_JOB";

// With ssh one command per host, else one for all. Throws Error(usage) if the job is too long for a variable.
std::vector<RemoteCommand> remote_commands(const LaunchPlan& plan, const RemoteOptions& options);

}  // namespace cleave::launcher
