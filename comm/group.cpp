#include "comm/group.h"

#include <algorithm>

namespace cleave {
namespace {

class GroupCommunicator final : public Communicator {
 public:
  GroupCommunicator(std::shared_ptr<Group> group, int rank)
      : Communicator(rank, group->size(), group->name()),
        group_(std::move(group)),
        sends_(size_t(size())),
        recvs_(size_t(size())) {}

  std::unique_ptr<Communicator> split(int color, int key, const std::string& name) override {
    auto place = collectives_.join();
    const Waiting w =
        waiting(*group_, rank(), *place, {.op = Collective::barrier}, "making group '" + name + "'");
    first_in_line(*group_, w, *place);
    const std::vector<int64_t> colors = group_->exchange(w, color), keys = group_->exchange(w, key);
    std::vector<int> members;
    for (int r = 0; r < size(); ++r)
      if (colors[size_t(r)] == color) members.push_back(r);
    std::stable_sort(members.begin(), members.end(),
                     [&](int a, int b) { return keys[size_t(a)] < keys[size_t(b)]; });
    const int new_rank = int(std::find(members.begin(), members.end(), rank()) - members.begin());
    return std::make_unique<GroupCommunicator>(group_->form(w, members, name), new_rank);
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
    stream.enqueue([group = group_, place = order.join(), rank = rank(), post, what = call.what, body] {
      const Waiting w = waiting(*group, rank, *place, post, std::string(what));
      first_in_line(*group, w, *place);
      body(*group, w);
    });
  }

  void do_all_gather(Tensor full, Tensor shard, Range piece, Stream& stream, const Call& call) override {
    const Post post{Collective::all_gather, full.dtype(), -1, piece.size() * size()};
    enqueue(collectives_, post, stream, call,
            [=](Group& g, const Waiting& w) { g.all_gather(w, full, shard, piece); });
  }

  void do_reduce_scatter(Tensor shard, Tensor full, Range piece, Stream& stream, const Call& call) override {
    const Post post{Collective::reduce_scatter, full.dtype(), -1, piece.size() * size()};
    enqueue(collectives_, post, stream, call,
            [=](Group& g, const Waiting& w) { g.reduce_scatter(w, shard, full, piece); });
  }

  void do_all_reduce(Tensor t, Stream& stream, const Call& call) override {
    enqueue(collectives_, {Collective::all_reduce, t.dtype(), -1, t.numel()}, stream, call,
            [=](Group& g, const Waiting& w) { g.all_reduce(w, t); });
  }

  void do_broadcast(Tensor t, int root, Stream& stream, const Call& call) override {
    enqueue(collectives_, {Collective::broadcast, t.dtype(), root, t.numel()}, stream, call,
            [=](Group& g, const Waiting& w) { g.broadcast(w, t, root); });
  }

  void do_send(Tensor t, int to, Stream& stream, const Call& call) override {
    enqueue(sends_[size_t(to)], {Collective::send, t.dtype(), to, t.numel()}, stream, call,
            [=](Group& g, const Waiting& w) { g.send(w, t, to); });
  }

  void do_recv(Tensor t, int from, Stream& stream, const Call& call) override {
    enqueue(recvs_[size_t(from)], {Collective::recv, t.dtype(), from, t.numel()}, stream, call,
            [=](Group& g, const Waiting& w) { g.recv(w, t, from); });
  }

  void do_barrier(Stream& stream, const Call& call) override {
    enqueue(collectives_, {.op = Collective::barrier}, stream, call,
            [](Group& g, const Waiting& w) { g.barrier(w); });
  }

  std::shared_ptr<Group> group_;
  Order collectives_;
  std::vector<Order> sends_, recvs_;  // by peer: a receive that waits does not hold up a send
};

}  // namespace

std::unique_ptr<Communicator> communicator_over(std::shared_ptr<Group> group, int rank) {
  return std::make_unique<GroupCommunicator>(std::move(group), rank);
}

}  // namespace cleave
