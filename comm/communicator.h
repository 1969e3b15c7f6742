// An ordered group of ranks and its collectives. Streams replace handles to wait on: a collective
// runs in the order of its stream. A group of one rank is always valid and free, so callers never check
// whether a kind of parallelism is enabled. All transports reduce in rank order, so the bits do not depend on
// transport, chunking or timing.
#pragma once
#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "comm/reduce.h"
#include "device/stream.h"
#include "device/tensor.h"

namespace cleave::comm {

enum class Collective : uint8_t {
  all_gather,
  reduce_scatter,
  all_reduce,
  broadcast,
  send,
  recv,
  barrier,
  all_to_all
};
inline constexpr int kCollectives = 8;
constexpr std::string_view name_of(Collective c) {
  constexpr std::string_view names[] = {"all_gather", "reduce_scatter", "all_reduce", "broadcast",
                                        "send",       "recv",           "barrier",    "all_to_all"};
  return names[size_t(c)];
}

// Bytes sent by this rank, by collective, counted for bandwidth-optimal algorithms (gloo's
// docs/algorithms.md): all_gather and reduce_scatter (n - 1) shards; all_reduce is a reduce-scatter and an
// all-gather over part(numel, n, rank): numel - part + part * (n - 1) elements; broadcast numel * (n - 1) / n
// at the root, counted as numel on the root only; send numel; all_to_all (n - 1) blocks.
struct CommBytes {
  std::array<int64_t, kCollectives> sent{};
  int64_t& operator[](Collective c) { return sent[size_t(c)]; }
  int64_t operator[](Collective c) const { return sent[size_t(c)]; }
  bool operator==(const CommBytes&) const = default;
  CommBytes operator-(const CommBytes& earlier) const {
    CommBytes since = *this;
    for (size_t c = 0; c < sent.size(); ++c) since.sent[c] -= earlier.sent[c];
    return since;
  }
};

// Description of a call for the report of a missed deadline, and how to cut it.
struct Call {
  static constexpr int64_t kWhole = int64_t{1} << 62;
  std::string_view what = {};  // "gradients of h.3"; must outlive the call's work
  int64_t max_numel = kWhole;  // elements of `full` per piece; at least one per rank
  // all_gather and reduce_scatter: range of every shard that takes part; other elements are unchanged.
  Range within = {0, kWhole};
  Reduction by = Reduction::sum;  // of reduce_scatter and all_reduce; equal on all ranks
};

class TransportAccess;  // comm/device_group.h

class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  const std::string& name() const { return name_; }  // "world", "data", ...; used in reports

  // `full` holds size() shards of equal numel; shard r comes from rank r. In place if `shard` is that slice
  // of `full`.
  void all_gather(Tensor full, Tensor shard, Stream& stream, const Call& call = {});
  // shard = shard rank() of the reduction (call.by) of `full` over ranks, in rank order. `full` is unchanged,
  // unless `shard` is its slice rank() (in place; the other slices are then unspecified).
  void reduce_scatter(Tensor shard, Tensor full, Stream& stream, const Call& call = {});
  // t = reduction (call.by) over ranks, in rank order, with the same bits on every rank.
  void all_reduce(Tensor t, Stream& stream, const Call& call = {});
  void broadcast(Tensor t, int root, Stream& stream, const Call& call = {});
  // `out` and `in` hold size() blocks of equal numel each and do not overlap. Sends block r of `in` to rank
  // r, and receives block r of `out` from it.
  void all_to_all(Tensor out, Tensor in, Stream& stream, const Call& call = {});
  void send(Tensor t, int to, Stream& stream, const Call& call = {});
  void recv(Tensor t, int from, Stream& stream, const Call& call = {});
  void barrier(Stream& stream, const Call& call = {});

  // Ranks with the same color form a new group and have the given ranks in it. Collective over this group;
  // runs immediately on the host thread. Throws Error(internal) if the number of the color's ranks is not
  // `size`, or their new ranks are not distinct.
  struct Subgroup {
    int color = 0, rank = 0, size = 1;
  };
  virtual std::unique_ptr<Communicator> split(const Subgroup& part, const std::string& name) = 0;
  // Duplicates the group; the copy has its own order of calls.
  std::unique_ptr<Communicator> duplicate(const std::string& name) { return split({0, rank_, size_}, name); }

  // Poisons the group: every rank that waits in it, now or later, throws Error(rank_lost) with `reason`.
  // Thread-safe; the first reason wins.
  virtual void abort(const std::string& reason) = 0;

  // Operations that only groups with a transport support; null without a transport. A wrapping communicator
  // returns that of the inner one.
  virtual TransportAccess* transport() { return nullptr; }

  // Counted when a call is enqueued.
  const CommBytes& bytes() const { return bytes_; }

 protected:
  Communicator(int rank, int size, std::string name) : rank_(rank), size_(size), name_(std::move(name)) {}

  // Implementations for size() > 1; operands are already checked. `piece` is a range within each shard or
  // block, all of it unless the call was cut. Implementations enqueue on `stream` and wait with a deadline.
  // If it passes, they report op, group, `what`, and the present and missing ranks.
  virtual void do_all_gather(Tensor full, Tensor shard, Range piece, Stream& stream, const Call& call) = 0;
  virtual void do_reduce_scatter(Tensor shard, Tensor full, Range piece, Stream& stream,
                                 const Call& call) = 0;
  virtual void do_all_reduce(Tensor t, Stream& stream, const Call& call) = 0;
  virtual void do_broadcast(Tensor t, int root, Stream& stream, const Call& call) = 0;
  virtual void do_all_to_all(Tensor out, Tensor in, Range piece, Stream& stream, const Call& call) = 0;
  virtual void do_send(Tensor t, int to, Stream& stream, const Call& call) = 0;
  virtual void do_recv(Tensor t, int from, Stream& stream, const Call& call) = 0;
  virtual void do_barrier(Stream& stream, const Call& call) = 0;

 private:
  int rank_, size_;
  std::string name_;
  CommBytes bytes_;
};

std::unique_ptr<Communicator> self_communicator(const std::string& name = "self");

class FlightRing;  // comm/flight_ring.h

struct CommOptions {
  std::chrono::milliseconds timeout{600'000};  // of every wait
  FlightRing* flights = nullptr;               // records the calls; outlives all groups
};

// Runs `body` once per rank, each on its own thread, over a thread transport. The first failure poisons the
// group and is rethrown after all threads end.
void run_ranks(int size, const std::function<void(Communicator& world)>& body,
               const CommOptions& options = {});

}  // namespace cleave::comm
