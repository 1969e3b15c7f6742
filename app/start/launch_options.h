// The command line of the launcher: DeepSpeed's, and what is ours.
#pragma once
#include <optional>
#include <string>

#include "app/arguments.h"
#include "launcher/hosts.h"
#include "launcher/remote_commands.h"

namespace cleave::app {

inline constexpr const char* kDefaultHostfile = "/job/hostfile";

struct LaunchRequest {
  int ranks = 0;  // -n; 0: one for each slot
  std::string hostfile = kDefaultHostfile;
  bool hostfile_given = false;
  launcher::HostFilter filter;
  std::string world_info;
  std::string master_addr;
  int master_port = -1;  // -1: not given
  int node_rank = -1;
  launcher::LauncherKind launcher = launcher::LauncherKind::ssh;
  std::string launcher_args;
  int ssh_port = 0;
  bool no_ssh = false, force_multi = false;
  bool module = false, no_python = false, no_local_rank = false;
  std::string venv_script, log_folder, bind_core_list;
  bool bind_cores = false, no_bind = false, save_pid = false, quiet = false, dry_run = false;
  int max_restarts = 0;
  Arguments command;    // the program and what belongs to it
  bool dashes = false;  // which stood after --
  std::string typed;    // the options before it, as typed
};

// Everything from the first word that is no option on belongs to the program. As DeepSpeed's parser, options
// may be shortened while they stay clear. Nothing when --help was printed; Error(usage).
std::optional<LaunchRequest> parse_launch(const Arguments& arguments);

}  // namespace cleave::app
