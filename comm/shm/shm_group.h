// Transport of processes on one host. Data passes through two slots per rank in shared memory, in chunks that
// stay in the cache: a rank fills one slot while the others read its other slot. Counters publish each rank's
// progress. A waiting rank spins briefly, then sleeps, to leave the cores to computation, and checks that the
// others are alive.
#pragma once
#include <functional>
#include <list>
#include <map>
#include <mutex>

#include "comm/group.h"
#include "comm/shm/shared_memory.h"
#include "comm/shm/shm_layout.h"

namespace cleave::comm {

class ShmGroup final : public Group {
 public:
  struct Members {
    std::string name;
    std::vector<int> ranks;  // of the world
    std::vector<int> pids;
    int rank = 0;  // of this process in the group
  };

  static size_t bytes_needed(int size);
  // `memory` is shared by all members and was zero-filled at creation. The alarm poisons this group and
  // groups formed from it.
  ShmGroup(Members members, SharedMemory memory, CommOptions options, std::shared_ptr<Alarm> alarm);
  ~ShmGroup() override;

  void all_gather(const Waiting& w, Tensor full, Tensor shard, Range piece) override;
  void reduce_scatter(const Waiting& w, Tensor shard, Tensor full, Range piece) override;
  void all_reduce(const Waiting& w, Tensor t) override;
  void broadcast(const Waiting& w, Tensor t, int root) override;
  void all_to_all(const Waiting& w, Tensor out, Tensor in, Range piece) override;
  void barrier(const Waiting& w) override;
  void send(const Waiting& w, Tensor t, int to) override;
  void recv(const Waiting& w, Tensor t, int from) override;
  std::vector<int64_t> exchange(const Waiting& w, int64_t mine) override;
  std::shared_ptr<Group> form(const Waiting& w, const std::vector<int>& members,
                              const std::string& name) override;
  std::string difference(const Waiting& w) override;
  std::string lost() const override;
  void poison(const std::string& reason) override;
  void abort(const std::string& reason) override;
  [[noreturn]] void give_up(const Waiting& w, const std::string& report, Exit exit) override;

 private:
  struct Letter {
    uint64_t number;
    SharedMemory memory;
    shm::LetterHead& head() const { return *reinterpret_cast<shm::LetterHead*>(memory.data()); }
    std::byte* text() const { return memory.data() + sizeof(shm::LetterHead); }
    int64_t capacity() const { return int64_t(memory.bytes() - sizeof(shm::LetterHead)); }
  };

  shm::Header& header() const;
  shm::Member& member(int rank) const;
  shm::Mailbox& mailbox(int from, int to) const;
  std::byte* slot(int rank) const;  // of the current chunk

  // Waits until here(rank) is true for every rank.
  template <class Here>
  void await(const Waiting& w, Here here) {
    for (int r = 0; r < size(); ++r)
      if (!here(r)) return await_slowly(w, std::ref(here));
  }
  void await_slowly(const Waiting& w, const std::function<bool(int rank)>& here);
  bool try_poison(const std::string& reason);
  void throw_if_poisoned(const Waiting& w) const;
  void throw_if_gone(const Waiting& w, const std::function<bool(int rank)>& here);
  bool is_gone(int rank) const;
  void wake();

  void begin_call(const Waiting& w);
  void begin_chunk(const Waiting& w);
  void publish();
  void publish_and_await_all(const Waiting& w);
  void compare(const Waiting& w, int other);
  void end_chunk();
  void all_reduce_chunk(const Waiting& w, Tensor t);
  Letter& free_letter(int64_t bytes);
  SharedMemory& letter_of(int from, const shm::Record& record);

  const int rank_;
  const std::vector<int> pids_;
  SharedMemory memory_;
  std::shared_ptr<Alarm> alarm_;
  std::vector<int> pidfds_;
  uint64_t call_ = 0, chunk_ = 0;
  bool first_chunk_ = false;

  std::mutex letters_mutex_;
  std::list<Letter> letters_;                                // of this rank
  std::map<std::pair<int, uint64_t>, SharedMemory> opened_;  // of others, by sender and number
};

}  // namespace cleave::comm
