// Starts the ranks of a job on this machine and stays with them: gives each its place in the environment, its
// share of the cores and a prefix before its lines; passes signals on; ends the rest when one fails; and says
// which rank was the cause. However it ends, no process of the job is left.
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
  std::map<std::string, std::string> environment = {};  // additions to this process's own
  int port = 0;                                         // of the rendezvous; 0 takes a free one
  std::string job_id = {};                              // empty: a new one
  int attempt = 0;
  bool bind_cores = true;  // a set of cores a rank, where there are enough
  // Rank 0 writes to this process's own output, without a prefix; for a terminal, so that a progress bar
  // works.
  bool rank0_inherits_output = false;
  std::chrono::milliseconds leave_grace{10'000};  // for the others to leave by themselves when one has failed
  std::chrono::milliseconds term_grace{5'000};    // and then between SIGTERM and SIGKILL
};

struct LaunchCallbacks {
  // Whole lines with their prefix and line end, "[1] loss 2.3\n"; an error that several ranks say in the same
  // words comes once.
  std::function<void(std::string_view line, bool is_error)> output = {};
  // A rank has ended, with its exit code, or 128 + signal; `killed` by the launcher itself.
  std::function<void(int rank, int exit, bool killed)> ended = {};
  // A descriptor that takes no more output for now, -1: none. What the ranks say waits for it meanwhile,
  // and nothing else does.
  std::function<int()> full = {};
  // What the launcher itself has to say meanwhile.
  std::function<void(const std::string& text)> say = {};
  // What it says the ranks do when they were asked to stop.
  std::string when_asked = "a training finishes this step and saves";
};

// How a launcher stays with the ranks of its host.
struct StayOptions {
  bool rank0_inherits_output = false;
  std::chrono::milliseconds leave_grace{10'000}, term_grace{5'000};
  // Longer, where a rank ended because all were asked to stop (75): another may still put its files away.
  std::chrono::milliseconds stop_grace{60'000};
  std::chrono::milliseconds grace_after(int exit) const {
    return exit == int(Exit::stopped) ? std::max(leave_grace, stop_grace) : leave_grace;
  }
  // A launcher on another host started this one; when nobody reads standard output any more, the ranks end.
  bool of_other_host = false;
  int control = -1;  // a descriptor with that launcher's words: lines "signal N", and its end ends the ranks
  bool heartbeat = false;  // a line each second: ten seconds without one end the ranks, too
  bool farewell = false;   // says "done" at the end, and waits for "bye" or the end of that launcher's words
  bool place = true;       // what is started is a rank, and told which; else it has only the environment
};

// A rank that was stopped (SIGSTOP) when another one failed is ended, and is the cause where the others only
// say that a rank is lost (6).
struct LaunchResult {
  int exit = 0;    // of the rank that was the cause; 128 + signal if it was killed
  int cause = -1;  // that rank
  // "rank 1 was killed by signal 9 (Killed)", "rank 2 ended with exit code 7: " and its last error where
  // others have talked since; empty when all ended with 0.
  std::string message;
  std::vector<int> exits;      // of every rank
  bool asked_to_stop = false;  // by a signal
  bool alone = false;          // the launcher on another host went away
};

// Blocks until all ranks have ended. SIGINT, SIGTERM and SIGUSR1 are passed on to the ranks, each once; a
// second SIGINT or SIGTERM kills them. The calling thread must be the program's main thread: the ranks die
// with it. Error(usage) if the program cannot be started or the port is taken.
LaunchResult launch_local(const LaunchOptions& options, const LaunchCallbacks& callbacks = {});

// One host's part of a plan, in the same way. A port that a plan gives to rank 0's host is held for it.
LaunchResult launch_node(const NodeStart& node, const StayOptions& stay = {},
                         const LaunchCallbacks& callbacks = {});

// "rank 1 was killed by signal 9 (Killed)", "rank 2 ended with exit code 7".
std::string end_of_rank(int rank, int exit);

// Sends the ranks what a signal to the launcher means for them, and says at once what that is.
void pass_on(int signal, PassedSignals& passed, const LaunchCallbacks& callbacks,
             const std::function<void(int signal)>& send);
// Why a job ended whose ranks were not given the time to stop.
inline constexpr std::string_view kKilledOnRequest =
    "a second Ctrl-C or signal killed the ranks before they stopped; the work since the last save is lost";

// Which rank's exit code is the job's: ranks in the order in which they ended. Codes that only say that
// another rank was lost (6) or that all stopped on request (75) give way to any other.
int cause_of(const std::vector<std::pair<int, int>>& rank_and_exit);

}  // namespace cleave::launcher
