// Transport interface: collectives of a set of ranks as plain calls that block, wait with a deadline and
// throw. GroupCommunicator enqueues them on streams in call order. A call names its caller and itself
// (Waiting), so one Group object can serve all ranks of a process.
#pragma once
#include <numeric>

#include "comm/alarm.h"
#include "comm/order.h"
#include "comm/post.h"

namespace cleave::comm {

class Group : public Poisonable {
 public:
  Group(std::string name, std::vector<int> ranks, CommOptions options)
      : name_(std::move(name)), ranks_(std::move(ranks)), options_(options) {}
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  const std::string& name() const { return name_; }
  const std::vector<int>& ranks() const { return ranks_; }  // world ranks by group rank
  int size() const { return int(ranks_.size()); }
  const CommOptions& options() const { return options_; }
  Clock::time_point deadline() const { return Clock::now() + options_.timeout; }

  // Collectives of one rank do not overlap; arguments are checked and not empty.
  virtual void all_gather(const Waiting& w, Tensor full, Tensor shard, Range piece) = 0;
  virtual void reduce_scatter(const Waiting& w, Tensor shard, Tensor full, Range piece) = 0;
  virtual void all_reduce(const Waiting& w, Tensor t) = 0;
  virtual void broadcast(const Waiting& w, Tensor t, int root) = 0;
  virtual void all_to_all(const Waiting& w, Tensor out, Tensor in, Range piece) = 0;
  virtual void barrier(const Waiting& w) = 0;
  // Calls of one pair and direction do not overlap; others may. send() does not wait for the receiver.
  virtual void send(const Waiting& w, Tensor t, int to) = 0;
  virtual void recv(const Waiting& w, Tensor t, int from) = 0;

  // Collective: returns `mine` of all ranks, by rank.
  virtual std::vector<int64_t> exchange(const Waiting& w, int64_t mine) = 0;
  // Collective: forms a new group of `members` (ranks of this group in their new order), which include the
  // caller.
  virtual std::shared_ptr<Group> form(const Waiting& w, const std::vector<int>& members,
                                      const std::string& name) = 0;

  // For a rank that has waited for long in a collective of a transport without a comparison of calls:
  // tells the others about the call, and returns how the call with the same number on another rank differs;
  // empty if no difference is known yet. Not collective; any thread, one at a time.
  virtual std::string difference(const Waiting& w) = 0;

  // Reason why the group was poisoned; empty if it was not. Thread-safe.
  virtual std::string lost() const = 0;
  // Poisons the group on all its ranks; poison() may affect only this process.
  virtual void abort(const std::string& reason) { poison(reason); }
  // Aborts the group unless another reason came first, and throws the first reason.
  [[noreturn]] virtual void give_up(const Waiting& w, const std::string& report,
                                    Exit exit = Exit::rank_lost) = 0;

 private:
  const std::string name_;
  const std::vector<int> ranks_;
  const CommOptions options_;
};

// Time in a call after which ranks compare it.
inline constexpr std::chrono::milliseconds kLongWait{1000};

inline std::vector<int> all_ranks(int size) {
  std::vector<int> ranks(static_cast<size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

}  // namespace cleave::comm
