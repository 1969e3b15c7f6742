// This process as a rank of its job: its place, its share of the machine, its connection to other ranks, and
// stop signals. A training program needs only this, a model and data:
//
//   int main() {
//     return run_job([](Job& job) {
//       const DsConfig config = job.read_config("ds_config.json").config;
//       Engine engine(config, make, job.connect(config), {.device = job.device()});
//       ...
//       return 0;
//     });
//   }
#pragma once
#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <string>

#include "comm/flight_ring.h"
#include "comm/gpu_transport.h"
#include "comm/rendezvous/rendezvous.h"
#include "comm/together.h"
#include "config_schema/read_config.h"
#include "core/cores.h"
#include "core/error.h"
#include "device/device.h"
#include "launcher/board.h"
#include "launcher/flight_file.h"

namespace cleave::launcher {

class NoticeWatch;  // launcher/notice.h

// Options of a rank; each corresponds to a command line option.
struct JobOptions {
  std::string transport = "auto";      // auto, shm or gloo
  std::string gpu_transport = "auto";  // auto, nccl, ipc or host
  std::string device = "auto";         // auto, cpu, cuda or cuda:INDEX
  bool share_gpu = false;              // ranks may share a GPU if there are fewer GPUs than ranks
  int threads = 0;                     // 0: one per core of this rank
  int local_rank = -1;                 // passed by some launchers; checked against the environment
  bool port_is_taken = false;          // another process of this job listens at the master's port
  bool secret_by_pmi = false;          // no MPI here, so PMI can give ranks of several hosts a secret
  comm::Facts facts = {};              // further inputs that must be equal on all ranks
};

class Job {
 public:
  // Finds this rank and the world in the environment (launcher/discovery.h), chooses the device, and sizes
  // the thread team for the rank's share of cores. Throws Error(usage); if this rank has no usable device,
  // the other ranks throw the same error in connect().
  explicit Job(const JobOptions& options = {});
  ~Job();

  const comm::RankInfo& info() const { return info_; }
  bool first() const { return info_.rank == 0; }
  int cuda_version() const { return cuda_version_; }  // of this build: 13000; 0: without CUDA, or not asked
  Device device() const { return device_.device; }    // device of this rank

  // Options for reading a ds_config in this world; `values` replace "auto".
  config::ReadOptions read_options(bool strict = false, const config::AutoValues& values = {}) const;
  // Reads a ds_config for this world from a file, or from text that messages call `name`. The first rank
  // prints problems to stderr; if there are errors, every rank throws Error(usage).
  config::ReadResult read_config(const std::string& path, const config::ReadOptions& options) const;
  config::ReadResult read_config(const std::string& path) const { return read_config(path, read_options()); }
  config::ReadResult read_config_text(std::string_view text, const std::string& name) const;

  // Collective: meets the other ranks and sets up the transport between GPUs. Waits for other ranks end after
  // the configuration's comm_timeout_s with Error(rank_lost). Before any other collective, the ranks compare
  // their configurations, the job's options and `facts` (comm::RanksDiffer). The communicator lives as long
  // as the job.
  comm::Communicator& connect(const config::DsConfig& config = {}, const comm::Facts& facts = {});
  comm::Communicator& world() { return world_->communicator(); }

  // Replacement of lost ranks, while the launcher can replace them (launcher/board.h).
  // True if the launcher may replace ranks; false also for launchers of other programs.
  bool may_replace() const { return board_ != nullptr; }
  // True if this process replaces a rank of a training that the others continue.
  bool replaces() const { return board_ && info_.attempt > board_->first_attempt(); }
  // True if a lost rank can be replaced now: the launcher holds the state of all ranks.
  bool can_join_again() const { return board_ && board_->holds_all(); }
  // After a loss, with all communicators destroyed: tells the other ranks `reason`, waits for the next
  // attempt, and connects as before. Throws the reason as Error(rank_lost) if the launcher replaces no rank.
  void join_again(const config::DsConfig& config, const comm::Facts& facts, const std::string& reason);
  Board* board() { return board_.get(); }

  // Texts for the start-up output.
  std::string transport() const;  // after connect()
  std::string threads() const;    // number of threads per rank, and the reason
  int thread_count() const { return threads_.threads; }

  // Runs the body and returns its result after all ranks have left; nothing of the body may use a
  // communicator afterwards. An exception is reported to the other ranks, which leave with the same reason.
  // If all ranks, or all ranks of a machine, find the same error, the first of them prints it, and the others
  // only return its exit code.
  int run(const std::function<int()>& body);
  // run() for programs without a body. `reason` is the failure of this rank; if empty, returns after all
  // ranks have left. `exit` is the exit code of the process after a failure.
  void end(const std::string& reason, int exit = int(Exit::internal));

  // Folder of this rank's flight record (launcher/flight_file.h). Default: flight, in the current folder.
  void record_flights_into(const std::string& folder);
  bool records_on_quit() const { return flight_file_ && flight_file_->takes_quit(); }
  int python_stacks() const { return flight_file_ ? flight_file_->python_stacks() : -1; }

  // comm/together.h over all ranks.
  void together(Exit otherwise, const std::function<void()>& body);
  void together(const std::function<void()>& body) { together(Exit::usage, body); }
  // True if `mine` is true on any rank. Collective.
  bool any(bool mine);
  // Text of the first rank, at most 4 KiB. Collective.
  std::string from_first(const std::string& text);

  // The first SIGINT, SIGTERM or SIGUSR1 requests a stop at the next step; a second one kills.
  enum class WhenAsked { saves, decides };  // the program saves automatically, or a script decides
  static void catch_signals(WhenAsked then = WhenAsked::saves);
  // Call first in a training: until catch_signals(), a stop signal ends the process with exit code 75,
  // because there is nothing to save. Signals that the launcher has blocked until now are delivered here.
  static void end_when_asked();
  static bool stop_requested();
  // Like the first signal, from a notice about this host (launcher/notice.h); a warning if the program does
  // not catch signals. A signal that follows is still the first one.
  static void stop_for_notice(const std::string& notice);

 private:
  config::ReadResult accepted(config::ReadResult read, const std::string& name) const;
  comm::Facts own_facts() const;
  void choose_device();
  // Prints settings of the hosts that slow NCCL or prevent it. Collective.
  void warn_of_network();
  // Meets the other ranks. If a rank has no usable device, every rank throws its error.
  // Whether the other ranks need no record of their calls to explain an error with this exit code.
  bool explains(int exit) const;
  void meet(std::chrono::milliseconds rendezvous_timeout, std::chrono::seconds timeout);
  // connect() for the current attempt.
  void connect_once(const config::DsConfig& config, const comm::Facts& facts);
  // From now on, SIGTERM prints `said` and ends the process with this code.
  static void keep_code(int exit, const std::string& said);

  JobOptions options_;
  comm::RankInfo info_;
  // Never freed: groups of engines that outlive the job refer to it.
  static comm::FlightRing& lasting_ring();
  comm::FlightRing& flights_ = lasting_ring();
  std::unique_ptr<Board> board_;             // null: ranks are not replaced
  comm::Socket meeting_;                     // inherited socket; each attempt gets a duplicate
  std::unique_ptr<FlightFile> flight_file_;  // null if another job of this process has it
  comm::OwnDevice device_;
  int cuda_version_ = 0;
  std::exception_ptr device_failure_;
  ThreadCount threads_;
  std::unique_ptr<comm::World> world_;
  std::unique_ptr<NoticeWatch> notices_;  // of the first rank on each host
  bool connecting_ = false;               // to other ranks; errors then concern this rank only
  std::string between_gpus_;
};

// main() of a program with processes that are ranks of a job: runs the body and returns the exit code of the
// process. Errors are printed on stderr as "error: ..." (launcher/exit_code.h).
int run_job(const std::function<int(Job& job)>& body, const JobOptions& options = {});

}  // namespace cleave::launcher
