// Runs the ranks of a job on this machine: sets each rank's place in the environment and its share of cores,
// prefixes its output lines, forwards signals, ends the other ranks when one fails, and names the rank that
// caused the failure. However it ends, no process of the job remains.
#pragma once
#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "launcher/launch_plan.h"
#include "launcher/passed_signals.h"

namespace cleave::launcher {

struct LaunchOptions {
  int ranks = 1;
  std::vector<std::string> command = {};  // argv of every rank; the program is looked up in PATH
  std::map<std::string, std::string> environment = {};  // added to this process's environment
  int port = 0;                                         // of the rendezvous; 0: a free port
  std::string job_id = {};                              // empty: a new one
  int attempt = 0;
  bool bind_cores = true;  // a separate set of cores per rank, if there are enough
  // Rank 0 writes directly to this process's output, without a prefix, so that a progress bar works on a
  // terminal.
  bool rank0_inherits_output = false;
  std::chrono::milliseconds leave_grace{10'000};  // for other ranks to leave after a failure
  std::chrono::milliseconds term_grace{5'000};    // then between SIGTERM and SIGKILL
};

struct LaunchCallbacks {
  // Complete lines with prefix and newline, "[1] loss 2.3\n". An error that several ranks print in the same
  // words is passed on once.
  std::function<void(std::string_view line, bool is_error)> output = {};
  // A rank has ended with its exit code, or 128 + signal; `killed`: by the launcher.
  std::function<void(int rank, int exit, bool killed)> ended = {};
  // Returns a descriptor that accepts no more output now; -1: none. Only rank output waits for it.
  std::function<int()> full = {};
  // Messages of the launcher.
  std::function<void(const std::string& text)> say = {};
  // Polled: true asks the ranks once to save and stop (SIGUSR1).
  std::function<bool()> asks_to_save = {};
  // Description of the ranks' reaction to a stop request.
  std::string when_asked = "a training finishes this step and saves";
};

// Supervision of the ranks of a host.
struct StayOptions {
  bool rank0_inherits_output = false;
  std::chrono::milliseconds leave_grace{10'000}, term_grace{5'000};
  // Longer, if a rank ended because all were asked to stop (75): another may still be saving.
  std::chrono::milliseconds stop_grace{60'000};
  std::chrono::milliseconds grace_after(int exit) const {
    return exit == int(Exit::stopped) ? std::max(leave_grace, stop_grace) : leave_grace;
  }
  // A launcher on another host started this one; if standard output loses its reader, the ranks end.
  bool of_other_host = false;
  int control = -1;        // descriptor with that launcher's lines "signal N"; its end ends the ranks
  bool heartbeat = false;  // that launcher sends a line each second; ten seconds without one end the ranks
  bool farewell = false;   // sends "done" at the end, and waits for "bye" or the end of `control`
  int replacements = 0;    // number of lost ranks of a training on one host to replace while the others stay
  bool place = true;       // the process is a rank and gets its place; otherwise only the environment
};

// If a rank was stopped (SIGSTOP) when another one failed, the launcher ends it. It counts as the cause if
// the others only report a lost rank (6).
struct LaunchResult {
  int exit = 0;    // of the rank that caused the failure; 128 + signal if killed
  int cause = -1;  // rank that caused the failure
  // "rank 1 was killed by signal 9 (Killed)", "rank 2 ended with exit code 7: " and its last error if others
  // have printed since; empty if all ended with 0.
  std::string message;
  std::vector<int> exits;      // of every rank
  int replaced = 0;            // losses after which ranks were replaced
  bool asked_to_stop = false;  // by a signal
  bool asked_to_save = false;  // by SIGUSR1 or LaunchCallbacks::asks_to_save
  bool alone = false;          // the launcher on another host is lost
};

// Blocks until all ranks have ended. Forwards SIGINT, SIGTERM and SIGUSR1 to the ranks once each; a second
// SIGINT or SIGTERM kills them. The calling thread must be the program's main thread: the ranks die with it.
// Throws Error(usage) if the program cannot be started or the port is in use.
LaunchResult launch_local(const LaunchOptions& options, const LaunchCallbacks& callbacks = {});

// launch_local() for one host's part of a plan. Holds the port that a plan assigns to rank 0's host.
LaunchResult launch_node(const NodeStart& node, const StayOptions& stay = {},
                         const LaunchCallbacks& callbacks = {});

// "rank 1 was killed by signal 9 (Killed)", "rank 2 ended with exit code 7".
std::string end_of_rank(int rank, int exit);

// Sends the ranks the signal that follows from a signal to the launcher, and prints the consequence at once.
void pass_on(int signal, PassedSignals& passed, const LaunchCallbacks& callbacks,
             const std::function<void(int signal)>& send);
// Reason of a job's end if the ranks had no time to stop.
inline constexpr std::string_view kKilledOnRequest =
    "a second Ctrl-C or signal killed the ranks before they stopped; the work since the last save is lost";

// Rank that determines the job's exit code, -1 if none; takes ranks in order of their ends. Codes for a lost
// other rank (6) or a requested stop (75) yield to any other.
int cause_of(const std::vector<std::pair<int, int>>& rank_and_exit);

// Rank that ended without a failure before `cause` lost a rank, -1 if none: the others still waited for it.
int left_before(int cause, const std::vector<std::pair<int, int>>& rank_and_exit);

}  // namespace cleave::launcher
