// This process as a rank of its job: where it stands, its share of the machine, its connection to the others,
// and the signals that ask it to stop. Everything that a training program needs besides a model and data:
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
#include <functional>
#include <memory>
#include <string>

#include "comm/rendezvous/rendezvous.h"
#include "comm/together.h"
#include "config_schema/read_config.h"
#include "core/cores.h"
#include "core/error.h"
#include "device/device.h"

namespace cleave::launcher {

// What a user may say of a rank; each is a word of the command line.
struct JobOptions {
  std::string transport = "auto";      // auto, shm or gloo
  std::string gpu_transport = "auto";  // auto, nccl, ipc or host
  std::string device = "auto";         // auto, cpu, cuda or cuda:INDEX
  bool share_gpu = false;              // ranks may take turns on a GPU, where there are fewer
  int threads = 0;                     // 0: as many as this rank has cores
  int local_rank = -1;                 // given by some launchers; checked against the environment
  bool port_is_taken = false;          // somebody else of this job listens at the master's port
  bool secret_by_pmi = false;  // the process uses no MPI, so PMI may give ranks of several hosts a secret
};

class Job {
 public:
  // Finds this rank and the world in the environment (launcher/discovery.h), chooses the device, and sizes
  // the thread team for a rank's share of the cores. Error(usage).
  explicit Job(const JobOptions& options = {});
  ~Job();

  const comm::RankInfo& info() const { return info_; }
  bool first() const { return info_.rank == 0; }
  Device device() const { return device_; }  // where this rank computes

  // How to read a ds_config for this world; `values` stand for "auto".
  config::ReadOptions read_options(bool strict = false, const config::AutoValues& values = {}) const;
  // A ds_config for this world, from a file or from a text that messages call `name`. Problems go to stderr
  // of the first rank; when there are errors, every rank throws Error(usage).
  config::ReadResult read_config(const std::string& path, const config::ReadOptions& options) const;
  config::ReadResult read_config(const std::string& path) const { return read_config(path, read_options()); }
  config::ReadResult read_config_text(std::string_view text, const std::string& name) const;

  // Collective: meets the other ranks, and sets up how tensors travel between GPUs. Whoever waits for another
  // rank gives up after the configuration's comm_timeout_s: Error(rank_lost). Before any other collective the
  // ranks compare their configurations, the job's options and `facts`: comm::RanksDiffer. The communicator
  // lives as long as the job.
  comm::Communicator& connect(const config::DsConfig& config = {}, const comm::Facts& facts = {});
  comm::Communicator& world() { return world_->communicator(); }

  // For start-up lines.
  std::string transport() const;  // after connect()
  std::string threads() const;    // how many a rank computes with, and why
  int thread_count() const { return threads_.threads; }

  // Returns what the body returns, after all ranks have said goodbye; so nothing of the body uses a
  // communicator any more. What it throws is told to the others, who leave with the same reason. What every
  // rank, or every rank of a machine, finds out alike is said by the first of them and is only the exit code
  // of the others.
  int run(const std::function<int()>& body);
  // The same for a program that is not within a body. Why this rank leaves; empty: nothing went wrong, and
  // all have said goodbye when it returns. `exit`: the code that the process ends with after a failure.
  void end(const std::string& reason, int exit = int(Exit::internal));

  // comm/together.h over all ranks.
  void together(Exit otherwise, const std::function<void()>& body);
  void together(const std::function<void()>& body) { together(Exit::usage, body); }
  // Whether any rank says so. Collective.
  bool any(bool mine);
  // The first rank's text, of at most 4 KiB. Collective.
  std::string from_first(const std::string& text);

  // SIGINT, SIGTERM and SIGUSR1 ask for a stop at the next step, once; a second one kills.
  enum class WhenAsked { saves, decides };  // the program saves by itself, or a script decides
  static void catch_signals(WhenAsked then = WhenAsked::saves);
  // The first line of a training: until catch_signals() a stop ends it with exit code 75, because there is
  // nothing to save. Signals that the launcher has held back until now come here.
  static void end_when_asked();
  static bool stop_requested();

 private:
  config::ReadResult accepted(config::ReadResult read, const std::string& name) const;
  comm::Facts own_facts() const;
  // From here on SIGTERM ends the process with this code, after `said`.
  static void keep_code(int exit, const std::string& said);

  JobOptions options_;
  comm::RankInfo info_;
  Device device_;
  ThreadCount threads_;
  std::unique_ptr<comm::World> world_;
  bool connecting_ = false;  // to the others: what fails there is this rank's own affair
  std::string between_gpus_;
};

// The main() of a program whose processes are the ranks of a job: runs the body and returns the process's
// exit code. What goes wrong is a line "error: ..." on stderr (launcher/exit_code.h).
int run_job(const std::function<int(Job& job)>& body, const JobOptions& options = {});

}  // namespace cleave::launcher
