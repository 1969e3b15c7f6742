// Command line of the launcher: DeepSpeed's options and Cleave's.
#pragma once
#include <optional>
#include <string>

#include "app/arguments.h"
#include "launcher/hosts.h"
#include "launcher/remote_commands.h"

namespace cleave::app {

inline constexpr const char* kDefaultHostfile = "/job/hostfile";

struct LaunchRequest {
  int ranks = 0;  // -n; 0: one rank per slot
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
  bool elastic = false;                // --elastic_training
  int min_nodes = -1, max_nodes = -1;  // of an elastic job; -1: 1, and all
  Arguments command;                   // the program and its arguments
  bool dashes = false;                 // given after --
  std::string typed;                   // the options before the command
};

// Parses the command line. The first word that is not an option starts the program's command. As in
// DeepSpeed, options may be abbreviated if they are unambiguous. Empty if --help was printed;
// Error(usage).
std::optional<LaunchRequest> parse_launch(const Arguments& arguments);

}  // namespace cleave::app
