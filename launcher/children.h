// A child process with its pipes: a rank or a command that reaches a host.
#pragma once
#include <sched.h>
#include <signal.h>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/rendezvous/socket.h"
#include "launcher/topology.h"

namespace cleave::launcher {

struct ChildSpec {
  std::vector<std::string> command;
  std::vector<std::string> environment;  // "NAME=value"
  RankPlace place = {};                  // empty: cores and memory policy of this process
  bool inherit_output = false;
  bool pipe_input = false;     // false: no input
  std::string folder = {};     // working folder; empty: that of this process
  int inherits = -1;           // descriptor to inherit, under the same number
  int parent_death = SIGKILL;  // signal when this process's thread dies; 0: none
  bool holds_stops = false;    // SIGINT, SIGTERM and SIGUSR1 start blocked
};

struct ChildProcess {
  int pid = -1;
  comm::Socket input;      // stdin, if it is a pipe
  comm::Socket output[2];  // stdout, stderr; closed at end of file
  std::string held[2];     // start of an incomplete line
};

// True if the command starts this program again.
bool is_this_program(const std::vector<std::string>& command);

// Forks and executes in a separate process group. Throws Error(usage) if the program cannot be executed or
// the folder does not exist.
ChildProcess start_child(const ChildSpec& spec);

// Reads once from stdout (0) or stderr (1) of the child, and calls `take` for each line, including its
// newline. Keeps up to 64 KiB of an incomplete line; at end of file, passes it on as a line and closes the
// pipe.
void read_lines(ChildProcess& child, int which, const std::function<void(std::string_view line)>& take);

// True if a signal stopped the process (SIGSTOP, SIGTSTP, a debugger).
bool is_stopped(int pid);

}  // namespace cleave::launcher
