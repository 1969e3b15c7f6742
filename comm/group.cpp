#include "comm/group.h"

#include <algorithm>

#include "comm/relay.h"

namespace cleave {
namespace {

class GroupCommunicator final : public Communicator {
 public:
  GroupCommunicator(std::shared_ptr<Group> group, int rank)
      : Communicator(rank, group->size(), group->name()),
        group_(std::move(group)),
        sends_(size_t(size())),
        recvs_(size_t(size())) {}

  std::unique_ptr<Communicator> split(const Part& part, const std::string& name) override {
    auto place = collectives_.join();
    const Waiting w =
        waiting(*group_, rank(), *place, {.op = Collective::barrier}, "making group '" + name + "'");
    first_in_line(*group_, w, *place);
    const std::vector<int64_t> colors = group_->exchange(w, part.color),
                               ranks = group_->exchange(w, part.rank);
    std::vector<int> members(size_t(part.size), -1);
    int found = 0;
    for (int r = 0; r < size(); ++r) {
      if (colors[size_t(r)] != part.color) continue;
      const int64_t at = ranks[size_t(r)];
      CHECK(0 <= at && at < part.size && members[size_t(at)] < 0,
            "group '{}' of {} ranks: rank {} of group '{}' wants place {}", name, part.size, r, this->name(),
            at);
      members[size_t(at)] = r, ++found;
    }
    CHECK(found == part.size, "group '{}' should have {} ranks, but {} came", name, part.size, found);
    return std::make_unique<GroupCommunicator>(group_->form(w, members, name), part.rank);
  }

  void abort(const std::string& reason) override { group_->abort(reason); }

 private:
  static Waiting waiting(const Group& group, int rank, const Order::Place& place, const Post& post,
                         std::string what) {
    return {group.name(), group.ranks(), rank, place.number(), std::move(what), post};
  }

  static void first_in_line(Group& group, const Waiting& w, Order::Place& place) {
    if (!place.wait_first(group.deadline()))
      group.give_up(w, describe(w) + ": an earlier call of this group on this rank did not end in time");
  }

  // Runs body(group, waiting) on the stream when all earlier calls of `order` are done. The task shares the
  // group, so it may outlive this communicator.
  template <class Body>
  void enqueue(Order& order, const Post& post, Stream& stream, const Call& call, Body body) {
    auto task = [group = group_, place = order.join(), rank = rank(), post, what = call.what, body] {
      const Waiting w = waiting(*group, rank, *place, post, std::string(what));
      first_in_line(*group, w, *place);
      body(*group, w);
    };
    if (!stream.on_cuda()) return stream.enqueue(std::move(task));
    if (!relay_) relay_ = std::make_unique<Relay>();
    relay_->run(stream, std::move(task));
  }

  void do_all_gather(Tensor full, Tensor shard, Range piece, Stream& stream, const Call& call) override {
    staged({full, shard, piece, rank(), size(), Shards::gather}, stream, [&](Tensor f, Tensor s, Range p) {
      const Post post{Collective::all_gather, f.dtype(), -1, p.size() * size()};
      enqueue(collectives_, post, stream, call,
              [=](Group& g, const Waiting& w) { g.all_gather(w, f, s, p); });
    });
  }

  void do_reduce_scatter(Tensor shard, Tensor full, Range piece, Stream& stream, const Call& call) override {
    staged({full, shard, piece, rank(), size(), Shards::scatter}, stream, [&](Tensor f, Tensor s, Range p) {
      const Post post{Collective::reduce_scatter, f.dtype(), -1, p.size() * size()};
      enqueue(collectives_, post, stream, call,
              [=](Group& g, const Waiting& w) { g.reduce_scatter(w, s, f, p); });
    });
  }

  void do_all_reduce(Tensor t, Stream& stream, const Call& call) override {
    staged(t, {.in = true, .out = true}, stream, [&](Tensor x) {
      enqueue(collectives_, {Collective::all_reduce, x.dtype(), -1, x.numel()}, stream, call,
              [=](Group& g, const Waiting& w) { g.all_reduce(w, x); });
    });
  }

  void do_broadcast(Tensor t, int root, Stream& stream, const Call& call) override {
    staged(t, {.in = rank() == root, .out = rank() != root}, stream, [&](Tensor x) {
      enqueue(collectives_, {Collective::broadcast, x.dtype(), root, x.numel()}, stream, call,
              [=](Group& g, const Waiting& w) { g.broadcast(w, x, root); });
    });
  }

  void do_send(Tensor t, int to, Stream& stream, const Call& call) override {
    staged(t, {.in = true}, stream, [&](Tensor x) {
      enqueue(sends_[size_t(to)], {Collective::send, x.dtype(), to, x.numel()}, stream, call,
              [=](Group& g, const Waiting& w) { g.send(w, x, to); });
    });
  }

  void do_recv(Tensor t, int from, Stream& stream, const Call& call) override {
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
  std::vector<Order> sends_, recvs_;  // by peer: a receive that waits does not hold up a send
  std::unique_ptr<Relay> relay_;      // from the first call on a CUDA stream on
};

}  // namespace

std::unique_ptr<Communicator> communicator_over(std::shared_ptr<Group> group, int rank) {
  return std::make_unique<GroupCommunicator>(std::move(group), rank);
}

}  // namespace cleave
