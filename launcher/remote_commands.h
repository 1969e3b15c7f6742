// How a plan reaches other hosts: what is executed on this machine for each kind of launcher. A pure
// function, so that nothing has to be started to see it. No secret and no value of the user's stands on a
// command line, where everybody on a machine can list it: the job travels through standard input or the
// environment.
#pragma once
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/launch_plan.h"

namespace cleave::launcher {

enum class LauncherKind { ssh, pdsh, openmpi, mpich, impi, mvapich, slurm };

// Any case; Error(usage) names what there is.
LauncherKind parse_launcher(std::string_view name);
std::string_view name_of(LauncherKind kind);

// ssh starts a launcher on each host, pdsh and srun all of them; the others start each rank.
inline bool starts_nodes(LauncherKind kind) {
  return kind == LauncherKind::ssh || kind == LauncherKind::pdsh || kind == LauncherKind::slurm;
}

struct RemoteOptions {
  LauncherKind kind = LauncherKind::ssh;
  std::vector<std::string> args = {};  // the user's, before ours
  int ssh_port = 0;                    // 0: as ssh is configured
  std::string program = "cleave";      // this one, at the same path on every host
  std::string this_host = {};          // which ssh is not needed for, as for localhost
  std::string mpirun = "mpirun";       // of the kind's MPI
};

struct RemoteCommand {
  std::vector<std::string> command;                     // argv
  std::map<std::string, std::string> environment = {};  // additions to this process's own
  std::string input = {};                               // what it reads first
};

// The variable that the whole job travels in where there is no standard input. Its name is one that sshd
// takes by default (AcceptEnv LC_*).
inline constexpr const char* kJobVariable = "LC_CLEAVE_JOB";

// The commands: with ssh one for each host, else one for all. Error(usage) for a job that is too long for a
// variable.
std::vector<RemoteCommand> remote_commands(const LaunchPlan& plan, const RemoteOptions& options);

}  // namespace cleave::launcher
