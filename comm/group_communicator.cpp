#include "comm/group_communicator.h"

#include <algorithm>
#include <type_traits>

#include "comm/device_group.h"
#include "comm/flight_ring.h"
#include "comm/relay.h"
#include "core/phase.h"

namespace cleave::comm {
namespace {

class GroupCommunicator final : public Communicator, public TransportAccess {
 public:
  GroupCommunicator(std::shared_ptr<Group> group, int rank)
      : Communicator(rank, group->size(), group->name()),
        group_(std::move(group)),
        sends_(size_t(size())),
        recvs_(size_t(size())),
        flights_(group_->options().flights),
        flight_group_(flights_ ? flights_->join(name(), group_->ranks()) : -1) {}

  std::unique_ptr<Communicator> split(const Subgroup& part, const std::string& name) override {
    return in_line("creating group '" + name + "'",
                   [&](const Waiting& w) { return make_part(w, part, name); });
  }

  void abort(const std::string& reason) override { group_->abort(reason); }
  TransportAccess* transport() override { return this; }

  void use(std::shared_ptr<DeviceTransport> transport) override { transport_ = std::move(transport); }
  std::string try_to_use(std::shared_ptr<DeviceTransport> transport) override {
    transport_ = std::move(transport);
    try {
      meet_on_gpus({.op = Collective::barrier});
      return {};
    } catch (const Error& e) {
      if (e.exit() != Exit::usage) throw;
      on_gpus_.reset(), transport_.reset();
      return e.what();
    }
  }
  void open(bool pairs) override {
    if (!transport_) return;
    if (!met_) meet_on_gpus({.op = Collective::barrier});
    if (!pairs || met_pairs_) return;
    in_line("connecting all pairs of GPUs", [&](const Waiting& w) { on_gpus_->meet_pairs(w); });
    met_pairs_ = true;
  }
  void open(int from, int to, int64_t bytes) override {
    if (!transport_) return;
    const Call call{.what = "opening the connection"};
    if (rank() == from)
      message_on_gpus(sends_[size_t(to)], {Collective::send, DType::uint8, to, bytes}, call,
                      [&](auto& g, const Waiting& w) { g.open_to(w, to, bytes); });
    if (rank() == to)
      message_on_gpus(recvs_[size_t(from)], {Collective::recv, DType::uint8, from, bytes}, call,
                      [&](auto& g, const Waiting& w) { g.open_from(w, from, bytes); });
  }
  int64_t reserve(const RankGroup& group, int ranks) const override {
    return transport_ ? transport_->reserve(group, ranks) : 0;
  }
  DeviceAllocator allocator() const override { return transport_ ? transport_->allocator() : nullptr; }
  void lend(std::vector<Tensor> buffers) override {
    lent_ = std::move(buffers);
    if (!met_ || lent_.empty()) return;
    in_line("registering buffers with the GPU transport",
            [&](const Waiting& w) { on_gpus_->lend(w, lent_); });
  }
  void take_back() override {
    lent_.clear();
    if (met_) on_gpus_->take_back();
  }
  std::vector<int64_t> exchange(int64_t mine, const std::string& what) override {
    return in_line(what, [&](const Waiting& w) { return group_->exchange(w, mine); });
  }
  std::vector<int64_t> exchange(std::span<const int64_t> mine, const std::string& what) override {
    const auto numel = int64_t(mine.size());
    std::vector<int64_t> all(mine.size() * size_t(size()));
    const Tensor full(all.data(), DType::int64, {numel * size()});
    std::vector<int64_t> own(mine.begin(), mine.end());
    in_line(what,
            [&](const Waiting& w) {
              group_->all_gather(w, full, Tensor(own.data(), DType::int64, {numel}), {0, numel});
            },
            {Collective::all_gather, DType::int64, -1, numel * size()});
    return all;
  }
  const FlightRing* flights() const override { return flights_; }

 private:
  std::unique_ptr<Communicator> make_part(const Waiting& w, const Subgroup& part, const std::string& name) {
    const std::vector<int64_t> colors = group_->exchange(w, part.color),
                               ranks = group_->exchange(w, part.rank);
    std::vector<int> members(size_t(part.size), -1);
    int found = 0;
    for (int r = 0; r < size(); ++r) {
      if (colors[size_t(r)] != part.color) continue;
      const int64_t at = ranks[size_t(r)];
      CHECK(0 <= at && at < part.size && members[size_t(at)] < 0,
            "group '{}' of {} ranks: rank {} of group '{}' expects place {}", name, part.size, r,
            this->name(), at);
      members[size_t(at)] = r, ++found;
    }
    CHECK(found == part.size, "group '{}': wrong number of ranks (expected {}, got {})", name, part.size,
          found);
    auto made = std::make_unique<GroupCommunicator>(group_->form(w, members, name), part.rank);
    made->transport_ = transport_;
    return made;
  }

  static Waiting waiting(const Group& group, int rank, const Order::Turn& turn, const Post& post,
                         std::string what) {
    return {group.name(), group.ranks(), rank, turn.number(), std::move(what), post};
  }

  static void first_in_line(Group& group, const Waiting& w, Order::Turn& turn) {
    if (!turn.wait_first(group.deadline()))
      group.give_up(w, describe(w) + ": an earlier call of this group on this rank did not end in time");
  }

  // Records a call from its entry to its end; a call that throws stays unfinished.
  class Recorded {
   public:
    Recorded(FlightRing* flights, const FlightCall& call)
        : flights_(flights), ticket_(flights ? flights->enter(call) : 0) {}
    void finish() const {
      if (flights_) flights_->finish(ticket_);
    }

   private:
    FlightRing* flights_;
    uint64_t ticket_;
  };

  // Returns body(waiting), called on this thread after all earlier collectives.
  template <class Body>
  std::invoke_result_t<Body, const Waiting&> in_line(std::string what, Body body,
                                                     const Post& post = {.op = Collective::barrier}) {
    auto turn = collectives_.join();
    const Waiting w = waiting(*group_, rank(), *turn, post, std::move(what));
    first_in_line(*group_, w, *turn);
    const Recorded record(flights_, {flight_group_, w.number, post, w.what, PhaseMark::current()});
    if constexpr (std::is_void_v<std::invoke_result_t<Body, const Waiting&>>) {
      body(w);
      record.finish();
    } else {
      auto result = body(w);
      record.finish();
      return result;
    }
  }

  // Runs body(group, waiting) on the stream after all earlier calls of `order`. The task shares ownership of
  // the group, so it may outlive this communicator.
  template <class Body>
  void enqueue(Order& order, const Post& post, Stream& stream, const Call& call, Body body) {
    auto task = [group = group_, turn = order.join(), rank = rank(), post, what = call.what, body,
                 flights = flights_, at = flight_group_, phase = PhaseMark::current(),
                 queued = flights_ ? FlightRing::now_ns() : 0] {
      const Waiting w = waiting(*group, rank, *turn, post, std::string(what));
      first_in_line(*group, w, *turn);
      const Recorded record(flights, {at, w.number, post, w.what, phase, queued});
      body(*group, w);
      record.finish();
    };
    if (!stream.on_cuda()) return stream.enqueue(std::move(task));
    if (!relay_) relay_ = std::make_unique<Relay>();
    relay_->run(stream, std::move(task));
  }

  // True if a call goes directly from GPU to GPU.
  bool direct(const Tensor& t, const Stream& stream) const {
    return transport_ && stream.on_cuda() && t.memory() == MemoryKind::device;
  }

  DeviceGroup& on_gpus() {
    if (!on_gpus_) on_gpus_ = transport_->over(group_, rank());
    return *on_gpus_;
  }

  void meet_on_gpus(const Post& post) {
    const auto meet = [&](const Waiting& w) {
      on_gpus().meet(w);
      met_ = true;
      if (!lent_.empty()) on_gpus_->lend(w, lent_);
    };
    in_line("connecting the GPUs", meet, post);
  }

  // Calls body(gpus, waiting) immediately: the GPU stream keeps the order. The first call meets the other
  // ranks.
  template <class Body>
  void collective_on_gpus(const Post& post, const Call& call, Body body) {
    if (!met_) meet_on_gpus(post);
    const auto turn = collectives_.join();
    body(*on_gpus_, waiting(*group_, rank(), *turn, post, std::string(call.what)));
  }

  template <class Body>
  void message_on_gpus(Order& order, const Post& post, const Call& call, Body body) {
    const auto turn = order.join();
    const Waiting w = waiting(*group_, rank(), *turn, post, std::string(call.what));
    first_in_line(*group_, w, *turn);
    body(on_gpus(), w);
  }

  void do_all_gather(Tensor full, Tensor shard, Range piece, Stream& stream, const Call& call) override {
    if (direct(full, stream))
      return collective_on_gpus(
          {Collective::all_gather, full.dtype(), -1, piece.size() * size()}, call,
          [&](auto& g, const Waiting& w) { g.all_gather(w, full, shard, piece, stream); });
    staged({full, shard, piece, rank(), size(), Shards::gather}, stream, [&](Tensor f, Tensor s, Range p) {
      const Post post{Collective::all_gather, f.dtype(), -1, p.size() * size()};
      enqueue(collectives_, post, stream, call,
              [=](Group& g, const Waiting& w) { g.all_gather(w, f, s, p); });
    });
  }

  void do_reduce_scatter(Tensor shard, Tensor full, Range piece, Stream& stream, const Call& call) override {
    if (direct(full, stream))
      return collective_on_gpus(
          {Collective::reduce_scatter, full.dtype(), -1, piece.size() * size(), call.by}, call,
          [&](auto& g, const Waiting& w) { g.reduce_scatter(w, shard, full, piece, stream); });
    staged({full, shard, piece, rank(), size(), Shards::scatter}, stream, [&](Tensor f, Tensor s, Range p) {
      const Post post{Collective::reduce_scatter, f.dtype(), -1, p.size() * size(), call.by};
      enqueue(collectives_, post, stream, call,
              [=](Group& g, const Waiting& w) { g.reduce_scatter(w, s, f, p); });
    });
  }

  void do_all_reduce(Tensor t, Stream& stream, const Call& call) override {
    if (direct(t, stream))
      return collective_on_gpus({Collective::all_reduce, t.dtype(), -1, t.numel(), call.by}, call,
                                [&](auto& g, const Waiting& w) { g.all_reduce(w, t, stream); });
    staged(t, {.in = true, .out = true}, stream, [&](Tensor x) {
      enqueue(collectives_, {Collective::all_reduce, x.dtype(), -1, x.numel(), call.by}, stream, call,
              [=](Group& g, const Waiting& w) { g.all_reduce(w, x); });
    });
  }

  void do_broadcast(Tensor t, int root, Stream& stream, const Call& call) override {
    if (direct(t, stream))
      return collective_on_gpus({Collective::broadcast, t.dtype(), root, t.numel()}, call,
                                [&](auto& g, const Waiting& w) { g.broadcast(w, t, root, stream); });
    staged(t, {.in = rank() == root, .out = rank() != root}, stream, [&](Tensor x) {
      enqueue(collectives_, {Collective::broadcast, x.dtype(), root, x.numel()}, stream, call,
              [=](Group& g, const Waiting& w) { g.broadcast(w, x, root); });
    });
  }

  void do_all_to_all(Tensor out, Tensor in, Range piece, Stream& stream, const Call& call) override {
    if (direct(out, stream))
      return collective_on_gpus({Collective::all_to_all, in.dtype(), -1, piece.size() * size()}, call,
                                [&](auto& g, const Waiting& w) { g.all_to_all(w, out, in, piece, stream); });
    staged_blocks(out, in, piece, size(), stream, [&](Tensor o, Tensor i, Range p) {
      const Post post{Collective::all_to_all, i.dtype(), -1, p.size() * size()};
      enqueue(collectives_, post, stream, call,
              [=](Group& g, const Waiting& w) { g.all_to_all(w, o, i, p); });
    });
  }

  void do_send(Tensor t, int to, Stream& stream, const Call& call) override {
    if (direct(t, stream))
      return message_on_gpus(sends_[size_t(to)], {Collective::send, t.dtype(), to, t.numel()}, call,
                             [&](auto& g, const Waiting& w) { g.send(w, t, to, stream); });
    staged(t, {.in = true}, stream, [&](Tensor x) {
      enqueue(sends_[size_t(to)], {Collective::send, x.dtype(), to, x.numel()}, stream, call,
              [=](Group& g, const Waiting& w) { g.send(w, x, to); });
    });
  }

  void do_recv(Tensor t, int from, Stream& stream, const Call& call) override {
    if (direct(t, stream))
      return message_on_gpus(recvs_[size_t(from)], {Collective::recv, t.dtype(), from, t.numel()}, call,
                             [&](auto& g, const Waiting& w) { g.recv(w, t, from, stream); });
    staged(t, {.out = true}, stream, [&](Tensor x) {
      enqueue(recvs_[size_t(from)], {Collective::recv, x.dtype(), from, x.numel()}, stream, call,
              [=](Group& g, const Waiting& w) { g.recv(w, x, from); });
    });
  }

  void do_barrier(Stream& stream, const Call& call) override {
    enqueue(collectives_, {.op = Collective::barrier}, stream, call,
            [](Group& g, const Waiting& w) { g.barrier(w); });
  }

  std::shared_ptr<Group> group_;
  Order collectives_;
  std::vector<Order> sends_, recvs_;  // by peer: a waiting receive does not delay a send
  std::unique_ptr<Relay> relay_;      // created by the first call on a CUDA stream
  std::shared_ptr<DeviceTransport> transport_;
  std::unique_ptr<DeviceGroup> on_gpus_;
  FlightRing* const flights_;  // null: calls are not recorded
  const int flight_group_;
  bool met_ = false, met_pairs_ = false;
  std::vector<Tensor> lent_;
};

}  // namespace

std::unique_ptr<Communicator> communicator_over(std::shared_ptr<Group> group, int rank) {
  return std::make_unique<GroupCommunicator>(std::move(group), rank);
}

}  // namespace cleave::comm
