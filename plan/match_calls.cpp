#include "plan/match_calls.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <deque>
#include <map>

namespace cleave::plan {

// Ranks of a log, each at its next call.
class Lockstep {
 public:
  explicit Lockstep(const CallLog& log)
      : log_(log),
        at_(log.calls_.size(), 0),
        arrived_(log.groups_.size()),
        waits_(log.calls_.size(), false) {}

  std::string run() {
    for (int r = 0; r < int(at_.size()); ++r) ready_.push_back(r);
    while (!ready_.empty()) {
      const int rank = ready_.front();
      ready_.pop_front();
      waits_[size_t(rank)] = false;
      while (!done(rank) && fault_.empty() && step(rank)) ++at_[size_t(rank)];
      if (!fault_.empty()) return fault_;
    }
    for (int r = 0; r < int(at_.size()); ++r)
      if (!done(r)) return stuck(r);
    for (const auto& [way, letters] : letters_)
      if (!letters.empty())
        return fmt::format("rank {} sends {} in group '{}', and rank {} never receives it",
                           world(way.group, way.from), comm::describe(letters.front()), path(way.group),
                           world(way.group, way.to));
    return {};
  }

 private:
  struct Way {
    int group, from, to;  // ranks of the group
    auto operator<=>(const Way&) const = default;
  };

  bool done(int rank) const { return at_[size_t(rank)] == log_.calls_[size_t(rank)].size(); }
  const CallLog::Entry& now(int rank) const { return log_.calls_[size_t(rank)][at_[size_t(rank)]]; }
  const std::string& path(int group) const { return log_.groups_[size_t(group)].path; }
  int world(int group, int rank) const { return log_.groups_[size_t(group)].ranks[size_t(rank)]; }
  int place(int group, int rank) const {
    const std::vector<int>& ranks = log_.groups_[size_t(group)].ranks;
    return int(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
  }
  void wake(int rank) {
    if (rank >= 0 && waits_[size_t(rank)]) waits_[size_t(rank)] = false, ready_.push_back(rank);
  }

  // Returns true if the rank's call completes.
  bool step(int rank) {
    const CallLog::Entry& call = now(rank);
    switch (call.post.op) {
      case comm::Collective::send: {
        letters_[{call.group, place(call.group, rank), call.post.peer}].push_back(call.post);
        wake(world(call.group, call.post.peer));
        return true;
      }
      case comm::Collective::recv:
        return receive(rank, call);
      default:
        return meet(rank, call);
    }
  }

  bool receive(int rank, const CallLog::Entry& call) {
    std::deque<comm::Post>& letters = letters_[{call.group, call.post.peer, place(call.group, rank)}];
    if (letters.empty()) {
      waits_[size_t(rank)] = true;
      return false;
    }
    const comm::Post letter = letters.front();
    letters.pop_front();
    if (letter.dtype != call.post.dtype || letter.numel != call.post.numel)
      fault_ =
          fmt::format("rank {} wants {} in group '{}', and rank {} sends {}", rank, comm::describe(call.post),
                      path(call.group), world(call.group, call.post.peer), comm::describe(letter));
    return true;
  }

  // The last rank of a group to arrive releases the others.
  bool meet(int rank, const CallLog::Entry& call) {
    std::vector<int>& here = arrived_[size_t(call.group)];
    if (!here.empty() && !(now(here[0]).post == call.post)) {
      fault_ = fmt::format("in group '{}' rank {} calls {} while rank {} calls {}", path(call.group), here[0],
                           comm::describe(now(here[0]).post), rank, comm::describe(call.post));
      return true;
    }
    // A letter may have woken a rank that has already arrived.
    if (std::find(here.begin(), here.end(), rank) == here.end()) here.push_back(rank);
    if (here.size() < log_.groups_[size_t(call.group)].ranks.size()) {
      waits_[size_t(rank)] = true;
      return false;
    }
    for (const int r : here) {
      if (r == rank) continue;
      ++at_[size_t(r)];
      wake(r);
    }
    here.clear();
    return true;
  }

  std::string stuck(int rank) const {
    const CallLog::Entry& call = now(rank);
    std::vector<std::string> others;
    if (call.post.op == comm::Collective::recv) {
      others.push_back(where(world(call.group, call.post.peer)));
    } else {
      const std::vector<int>& here = arrived_[size_t(call.group)];
      for (const int r : log_.groups_[size_t(call.group)].ranks)
        if (std::find(here.begin(), here.end(), r) == here.end() && others.size() < 4)
          others.push_back(where(r));
    }
    return fmt::format("rank {} waits for ever in {} of group '{}': {}", rank, comm::describe(call.post),
                       path(call.group), fmt::join(others, "; "));
  }
  std::string where(int rank) const {
    if (rank < 0) return "a rank of the group never calls in it";
    if (done(rank)) return fmt::format("rank {} has ended", rank);
    return fmt::format("rank {} is in {} of group '{}'", rank, comm::describe(now(rank).post),
                       path(now(rank).group));
  }

  const CallLog& log_;
  std::vector<size_t> at_;
  std::vector<std::vector<int>> arrived_;  // by group
  std::vector<bool> waits_;                // by rank
  std::deque<int> ready_;
  std::map<Way, std::deque<comm::Post>> letters_;
  std::string fault_;
};

void CallLog::add(int rank, const comm::PlannedGroup& group, const comm::Post& post) {
  const auto [known, added] = index_.try_emplace(group.path, int(groups_.size()));
  if (added) groups_.push_back({group.path, std::vector<int>(size_t(group.size), -1)});
  std::vector<int>& ranks = groups_[size_t(known->second)].ranks;
  CHECK(int(ranks.size()) == group.size, "rank {} takes group '{}' for {} ranks, another for {}", rank,
        group.path, group.size, ranks.size());
  int& there = ranks[size_t(group.rank)];
  CHECK(there == -1 || there == rank, "ranks {} and {} both take rank {} of group '{}'", there, rank,
        group.rank, group.path);
  there = rank;
  calls_[size_t(rank)].push_back({known->second, post});
}

int64_t CallLog::calls() const {
  int64_t sum = 0;
  for (const auto& list : calls_) sum += int64_t(list.size());
  return sum;
}

std::string CallLog::fault() const { return Lockstep(*this).run(); }

}  // namespace cleave::plan
