// This process as a rank of its job: where it stands, its share of the machine, its connection to the others,
// and the signals that ask it to stop.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "app/options.h"
#include "comm/rendezvous.h"
#include "comm/together.h"
#include "config_schema/read_config.h"
#include "core/cores.h"

namespace cleave {

class Session {
 public:
  // Finds the rank and world from the environment; sizes the thread team for a rank's share of the cores.
  explicit Session(const RankOptions& options);

  const RankInfo& info() const { return info_; }
  bool first() const { return info_.rank == 0; }
  Device device() const { return device_; }  // what --device comes to for this rank

  ReadOptions read_options(bool strict, const AutoValues& values) const;  // for this world
  // The ds_config for this world. Problems go to stderr of the first rank; when there are errors, every rank
  // throws Error(usage).
  ReadResult read_config(const std::string& path, const ReadOptions& options) const;

  void connect(std::chrono::seconds timeout);
  Communicator& world() { return world_->communicator(); }
  // For start-up lines.
  std::string transport() const;
  std::string threads() const;  // how many a rank computes with, and why
  // Returns what the body returns. What it throws is told to the others, who leave with the same reason;
  // what every rank, or every rank of a machine, finds out alike is said by the first of them and is only the
  // exit code of the others.
  int run(const std::function<int()>& body);
  void leave() { world_->leave(); }

  // comm/together.h over all ranks.
  void together(Exit otherwise, const std::function<void()>& body) {
    cleave::together(world(), otherwise, body);
  }
  void together(const std::function<void()>& body) { together(Exit::usage, body); }
  // The first rank's text, of at most 4 KiB. Collective.
  std::string from_first(const std::string& text);

  // SIGINT, SIGTERM and SIGUSR1 ask for a stop at the next step, once; a second one kills.
  static void catch_signals();
  static bool stop_requested();

 private:
  void failed(const std::string& reason);

  RankOptions options_;
  RankInfo info_;
  Device device_;
  ThreadCount threads_;
  std::unique_ptr<World> world_;
  bool connecting_ = false;  // to the others: what fails there is this rank's own affair
  std::string between_gpus_;
};

}  // namespace cleave
