// What the ranks of one group on one host share. Data passes through two slots a rank, in chunks that stay in
// the cache: while the others read one slot its rank fills the other. Counters say how far each rank is; a
// rank that waits spins briefly and then sleeps, because the cores belong to the computation.
#pragma once
#include <atomic>
#include <list>
#include <map>
#include <mutex>
#include <span>

#include "comm/alarm.h"
#include "comm/order.h"
#include "comm/post.h"
#include "comm/shared_memory.h"

namespace cleave {

class ShmGroup final : public Poisonable {
 public:
  struct Members {
    std::string name;
    std::vector<int> ranks;  // of the world
    std::vector<int> pids;
    int rank = 0;  // of this process, within the group
    int size() const { return int(ranks.size()); }
  };

  static size_t bytes_needed(int size);
  // `memory` is zero-filled when the first rank gets it, and common to all members.
  ShmGroup(Members members, SharedMemory memory, CommOptions options);
  ~ShmGroup() override;

  const Members& members() const { return members_; }
  int rank() const { return members_.rank; }
  int size() const { return members_.size(); }
  const CommOptions& options() const { return options_; }
  SharedMemory& memory() { return memory_; }
  Clock::time_point deadline() const { return Clock::now() + options_.timeout; }

  // The collectives, on bytes of one element type. Calls of one group must not overlap.
  void all_gather(const Waiting& w, Tensor full, Tensor shard, Range piece);
  void reduce_scatter(const Waiting& w, Tensor shard, Tensor full, Range piece);
  void all_reduce(const Waiting& w, Tensor t);
  void broadcast(const Waiting& w, Tensor t, int root);
  void barrier(const Waiting& w);
  // Everybody's `mine`, by rank.
  std::vector<int64_t> exchange(const Waiting& w, int64_t mine);

  // Calls of one pair and direction must not overlap. A send leaves its data in memory of the sender, which
  // is used again once the receiver has read it.
  void send(const Waiting& w, Tensor t, int to);
  void recv(const Waiting& w, Tensor t, int from);

  void poison(const std::string& reason) override;
  [[noreturn]] void stuck_in_line(const Waiting& w);

 private:
  struct Header;
  struct Member;
  struct Record;
  struct Mailbox;
  struct Letter;  // memory of a sender that carries one message at a time

  Header& header() const;
  Member& member(int rank) const;
  Mailbox& mailbox(int from, int to) const;
  std::byte* slot(int rank) const;  // of the current chunk

  // Waits until here(rank) holds for every rank.
  template <class Here>
  void await(const Waiting& w, Here here);
  [[noreturn]] void give_up(const Waiting& w, const std::string& report);
  void throw_if_poisoned(const Waiting& w) const;
  void throw_if_gone(const Waiting& w, const std::vector<bool>& present);
  bool is_gone(int rank) const;
  void wake();

  void begin_call(const Waiting& w);  // says which call this is
  void begin_chunk(const Waiting& w);
  void publish_and_await_all(const Waiting& w);
  void compare(const Waiting& w, int other);
  void end_chunk();
  void all_reduce_chunk(const Waiting& w, Tensor t);

  Letter& free_letter(int64_t bytes);

  Members members_;
  SharedMemory memory_;
  CommOptions options_;
  std::vector<int> pidfds_;
  uint32_t call_ = 0, chunk_ = 0;
  bool first_chunk_ = false;

  std::mutex letters_mutex_;
  std::list<Letter> letters_;                                  // of this rank
  std::map<std::pair<int, uint64_t>, SharedMemory> received_;  // letters of others, by sender and number
};

}  // namespace cleave
