// An ordered group of ranks and its collectives. There are no handles to wait on, only streams: a collective
// runs in the order of the stream it is given. A group of one is legal everywhere and costs nothing, which is
// why no caller asks whether a kind of parallelism is switched on. Reductions go in rank order on every
// transport, so that the bits do not depend on the transport, on chunking or on timing.
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

// Bytes this rank sent, by collective, as the bandwidth-optimal algorithms count them (gloo's
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

// What a call is about, for the report of a missed deadline, and how it may be cut.
struct Call {
  static constexpr int64_t kWhole = int64_t{1} << 62;
  std::string_view what =
      {};  // "gradients of h.3"; must outlive the call's work (a literal or a unit's name)
  int64_t max_numel =
      kWhole;  // cut into collectives over at most this many elements of `full` (at least one a rank)
  // all_gather and reduce_scatter: only these elements of every shard take part; the others are left alone.
  Range within = {0, kWhole};
  Reduction by = Reduction::sum;  // of reduce_scatter and all_reduce, alike on all ranks
};

class TransportAccess;  // comm/device_group.h

class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  const std::string& name() const { return name_; }  // "world", "data", ...; appears in reports

  // full holds size() shards of equal numel; the r-th comes from rank r. In place when shard is that slice of
  // full.
  void all_gather(Tensor full, Tensor shard, Stream& stream, const Call& call = {});
  // shard = the rank()-th shard of the sum (or what call.by says) over ranks of full, in rank order. full is
  // unchanged, except that shard may be the rank()-th slice of full (in place; the other slices are then
  // unspecified).
  void reduce_scatter(Tensor shard, Tensor full, Stream& stream, const Call& call = {});
  // t = the sum (or what call.by says) over ranks, in rank order, the same bits on every rank.
  void all_reduce(Tensor t, Stream& stream, const Call& call = {});
  void broadcast(Tensor t, int root, Stream& stream, const Call& call = {});
  // `out` and `in` hold size() blocks of equal numel each and do not overlap; block r of `in` goes to rank r,
  // block r of `out` comes from there.
  void all_to_all(Tensor out, Tensor in, Stream& stream, const Call& call = {});
  void send(Tensor t, int to, Stream& stream, const Call& call = {});
  void recv(Tensor t, int from, Stream& stream, const Call& call = {});
  void barrier(Stream& stream, const Call& call = {});

  // Ranks giving the same color form a new group, in which each has the rank that it gives. Collective over
  // this group; runs on the host thread at once. Error(internal) when the color's ranks are not `size`, each
  // with a rank of its own.
  struct Subgroup {
    int color = 0, rank = 0, size = 1;
  };
  virtual std::unique_ptr<Communicator> split(const Subgroup& part, const std::string& name) = 0;
  // The same ranks as another group: its calls keep an order of their own.
  std::unique_ptr<Communicator> duplicate(const std::string& name) { return split({0, rank_, size_}, name); }

  // Poisons the group: every rank waiting in it, now or later, leaves with Error(rank_lost) carrying
  // `reason`. Safe from any thread; the first reason wins.
  virtual void abort(const std::string& reason) = 0;

  // What only a group with a transport can do; null: there is none. A communicator around another one answers
  // for it.
  virtual TransportAccess* transport() { return nullptr; }

  // Counted when a call is enqueued, in this communicator and (for parts of a step) by its users' snapshots.
  const CommBytes& bytes() const { return bytes_; }

 protected:
  Communicator(int rank, int size, std::string name) : rank_(rank), size_(size), name_(std::move(name)) {}

  // Bodies for size() > 1, operands already checked. `piece` is a range within each shard or block; it is
  // all of it unless the call was cut. Implementations enqueue on `stream`, wait with a deadline and name op,
  // group, `what`, and the ranks that are present and missing when it passes.
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

struct CommOptions {
  std::chrono::milliseconds timeout{600'000};  // of every wait
};

// Runs body once per rank, each on a thread of its own, over a thread transport. The first failure poisons
// the group and is rethrown when all have ended.
void run_ranks(int size, const std::function<void(Communicator& world)>& body,
               const CommOptions& options = {});

}  // namespace cleave::comm
