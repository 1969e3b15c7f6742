// Whether the calls that all ranks of a job make fit together: a proof, before any of them starts, that no
// rank will wait for ever and none will be given other data than it asked for.
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

  // Runs all ranks in lockstep: a send leaves a letter, a receive waits for it, every other call waits for
  // its whole group. Empty when every rank comes to its end, each receive gets what it asked for, and no
  // letter is left; else the first fault, with the ranks, groups and calls that are in it.
  std::string fault() const;

 private:
  friend class Lockstep;
  struct Entry {
    int group = 0;
    comm::Post post;
  };
  struct Group {
    std::string path;
    std::vector<int> ranks;  // of the job; -1: never heard of
  };
  std::vector<Group> groups_;
  std::unordered_map<std::string, int> index_;  // of groups, by path
  std::vector<std::vector<Entry>> calls_;       // by rank
};

}  // namespace cleave::plan
