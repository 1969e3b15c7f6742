// One started process, a rank or what reaches a host, and its pipes.
#pragma once
#include <sched.h>
#include <signal.h>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/rendezvous/socket.h"

namespace cleave::launcher {

struct ChildSpec {
  std::vector<std::string> command;
  std::vector<std::string> environment;  // "NAME=value"
  std::vector<int> cores;                // empty: wherever this process may run
  bool inherit_output = false;
  bool pipe_input = false;     // else it reads nothing
  std::string folder = {};     // where it runs; empty: where this process does
  int inherits = -1;           // a descriptor that it keeps, under the same number
  int parent_death = SIGKILL;  // what it gets when this process's thread dies; 0: nothing
  bool holds_stops = false;    // SIGINT, SIGTERM and SIGUSR1 wait until it unblocks them
};

struct ChildProcess {
  int pid = -1;
  comm::Socket input;      // its stdin, where it has a pipe
  comm::Socket output[2];  // stdout, stderr; closed at their end
  std::string held[2];     // the beginning of a line that has not ended
};

// Whether the command starts this program again.
bool is_this_program(const std::vector<std::string>& command);

// Forks and executes, in a process group of its own. Error(usage) if the program cannot be executed or the
// folder is not there.
ChildProcess start_child(const ChildSpec& spec);

// Reads once what the child has written to stdout (0) or stderr (1), and calls `take` for each line, its end
// included. A line that has not ended is held back, up to 64 KiB of it; at the end of the output it is a
// line, and the pipe is closed.
void read_lines(ChildProcess& child, int which, const std::function<void(std::string_view line)>& take);

// Whether it was stopped by a signal (SIGSTOP, SIGTSTP, a debugger) and stands still.
bool is_stopped(int pid);

}  // namespace cleave::launcher
