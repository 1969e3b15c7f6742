// Messages of one step of a call over Gloo: started together, awaited with one deadline, and explained if
// they fail.
#pragma once
#include <gloo/transport/context.h>
#include <gloo/transport/unbound_buffer.h>

#include <functional>
#include <list>
#include <mutex>
#include <set>

#include "comm/group.h"
#include "comm/rendezvous/key_value_client.h"
#include "comm/watch.h"

namespace cleave::comm {

class GlooExchange;

// Shared state of the exchanges of one group.
class GlooWires final : public Watched {
 public:
  GlooWires(std::string the_key, std::vector<std::string> the_labels, KeyValueClient& the_store)
      : key(std::move(the_key)), labels(std::move(the_labels)), store(the_store) {}

  // Group::difference() for a rank of the wires' group.
  std::string difference(const Waiting& w);
  // Compares the calls that wait for long, and ends them all if ranks differ: Gloo matches messages by a
  // number that includes size and type, so ranks in different calls would only reach the deadline.
  void look() override;
  // Key in the store of the calls that make a rank wait for long; set before the first exchange.
  std::string key_of_calls(int rank) const;

  // Ends waits of all exchanges, now and later, with this reason; the first one counts. Thread-safe.
  void poison(const std::string& reason);
  std::string reason() const;  // empty if not poisoned
  // Error(rank_lost) with the reason, or Error(internal) with the difference that this rank found.
  void throw_if_poisoned(const Waiting& w);

  const std::string key;                  // of the group in the store
  const std::vector<std::string> labels;  // of its ranks, for messages
  KeyValueClient& store;
  std::shared_ptr<gloo::transport::Context> context;     // set before the first exchange
  std::function<void(const std::string& reason)> abort;  // of the group; set before the first exchange

 private:
  friend class GlooExchange;
  std::string difference_of_others(const Waiting& w);

  mutable std::mutex mutex_;
  std::set<GlooExchange*> active_;
  std::string reason_, difference_;
};

class GlooExchange {
 public:
  // `step` distinguishes the exchanges of one call; all ranks count them equally.
  GlooExchange(Group& group, GlooWires& wires, const Waiting& w, uint64_t step);
  ~GlooExchange();
  GlooExchange(const GlooExchange&) = delete;
  GlooExchange& operator=(const GlooExchange&) = delete;

  // Operands must live until finish() returns or throws. Empty operands send nothing.
  void send(Tensor t, int to) { start(t, to, true); }
  void recv(Tensor t, int from) { start(t, from, false); }

  // Waits for all transfers, receives first. Throws Error(rank_lost) with the report if the group's deadline
  // passes, a connection breaks or the group is poisoned.
  void finish();

 private:
  friend class GlooWires;
  struct Transfer {
    int peer;
    bool is_send;
    std::unique_ptr<gloo::transport::UnboundBuffer> buffer;
    bool done = false;
  };

  Waiting waiting() const { return {group_name_, ranks_, rank_, number_, what_, post_}; }
  std::string waiting_key(int rank) const;
  void abort();  // with the wires' mutex held
  void start(Tensor t, int peer, bool is_send);
  void wait(Transfer& t, Clock::time_point until);
  void broken(int peer, Clock::time_point until);  // always throws
  std::vector<bool> roll_call();

  Group& group_;
  GlooWires& wires_;
  const std::string group_name_;
  const std::vector<int> ranks_;
  const int rank_;
  const uint64_t number_;
  const std::string what_;
  const Post post_;
  const uint64_t tag_;
  const Clock::time_point begin_ = Clock::now();
  Clock::time_point compare_at_ = begin_ + kLongWait;
  std::list<Transfer> transfers_;
};

}  // namespace cleave::comm
