// Shared memory of a launcher and its ranks on one host, with which ranks are replaced while the others stay:
// the number of the current attempt, the state that the launcher holds for each rank, and the ranks that have
// lost others and wait for the next attempt. The ranks find it by the variable CLEAVE_BOARD.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/shm/shared_memory.h"

namespace cleave::launcher {

// The loss that began an attempt.
struct Loss {
  std::string cause;  // "rank 1 was killed by signal 9 (Killed)"
  int64_t when = 0;   // ns of the clock that all processes share
};

// Newest step, and newest step with evaluations, in the outputs of the first rank.
struct Reported {
  int64_t step = 0, evaluation = -1;
};

class Board {
 public:
  static constexpr int kEnded = -1;

  // For the launcher.
  Board(int world, int attempt);
  // For rank `rank`: opens the board that `place` names.
  Board(const std::string& place, int rank, int world);
  std::string place() const;  // value of CLEAVE_BOARD

  // Current attempt; kEnded after the launcher gave up to replace ranks.
  int attempt() const;
  int first_attempt() const;
  // True if the launcher holds the state of all ranks.
  bool holds_all() const;

  // Launcher: takes the state that ranks offer.
  void collect();
  void begin_attempt(const Loss& loss);
  void end();
  // True if the rank waits for the attempt after the current one.
  bool waits(int rank) const;

  // Ranks: offers shared memory to the launcher, which keeps it after the end of this process.
  void offer(const comm::SharedMemory& state);
  // Shared memory that an earlier process of this rank offered; empty if there is none.
  comm::SharedMemory held() const;
  // Waits until the attempt after `attempt` begins, and returns its number, or kEnded.
  int wait_after(int attempt);
  // Returns all losses since the last call, with the time of the first. For one rank.
  Loss take_loss();
  Reported reported() const;
  void set_reported(Reported reported);

  static int64_t now();  // ns

 private:
  struct Layout;
  struct Entry;
  Layout& layout() const;
  Entry& entry(int rank) const;

  int world_, rank_ = -1, launcher_;
  comm::SharedMemory memory_;
  std::vector<comm::SharedMemory> held_;  // of the launcher, by rank
};

}  // namespace cleave::launcher
