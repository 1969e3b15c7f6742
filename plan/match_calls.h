// Matches the calls of all ranks of a job: proves before the start that no rank waits forever and that each
// receives the data it asked for.
#pragma once
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "comm/planned.h"

namespace cleave::plan {

class CallLog {
 public:
  explicit CallLog(int ranks) : calls_(size_t(ranks)) {}

  void add(int rank, const comm::PlannedGroup& group, const comm::Post& post);
  int64_t calls() const;

  // Runs all ranks in lockstep: a send leaves a letter, a receive waits for it, and every other call waits
  // for its whole group. Returns an empty string if every rank finishes, each receive matches and no letter
  // is left; otherwise the first fault with its ranks, groups and calls.
  std::string fault() const;

 private:
  friend class Lockstep;
  struct Entry {
    int group = 0;
    comm::Post post;
  };
  struct Group {
    std::string path;
    std::vector<int> ranks;  // of the job; -1: not seen yet
  };
  std::vector<Group> groups_;
  std::unordered_map<std::string, int> index_;  // of groups, by path
  std::vector<std::vector<Entry>> calls_;       // by rank
};

}  // namespace cleave::plan
