#include "comm/tapped.h"

#include "device/copy.h"

namespace cleave::comm {
namespace {

class TappedCommunicator final : public Communicator {
 public:
  struct Inner {
    Communicator* ranks = nullptr;  // null: a rank alone
    std::unique_ptr<Communicator> own = {};
  };
  TappedCommunicator(PlannedGroup group, const std::string& name, Inner inner, CallTap& tap)
      : Communicator(group.rank, group.size, name),
        group_(std::move(group)),
        inner_(std::move(inner)),
        tap_(tap) {}

  std::unique_ptr<Communicator> split(const Subgroup& part, const std::string& name) override {
    PlannedGroup group{fmt::format("{}/{}:{}", group_.path, name, part.color), part.rank, part.size};
    Inner inner;
    if (inner_.ranks) inner.own = inner_.ranks->split(part, name), inner.ranks = inner.own.get();
    return std::make_unique<TappedCommunicator>(std::move(group), name, std::move(inner), tap_);
  }
  void abort(const std::string& reason) override {
    if (inner_.ranks) inner_.ranks->abort(reason);
  }
  TransportAccess* transport() override { return inner_.ranks ? inner_.ranks->transport() : nullptr; }

 private:
  // Makes the call between begin and end of the tap.
  template <class Make>
  void show(SeenCall call, Stream& stream, Make make) {
    const bool shown = !stream.discards() && !stream.dry();
    const size_t number = shown ? tap_.begin(call, stream) : 0;
    if (inner_.ranks) make(*inner_.ranks);
    if (shown) tap_.end(number, call, stream);
  }
  // Slices [piece) of each rank's part of a tensor, of all ranks or of the others.
  std::vector<Tensor> parts(const Tensor& full, Range piece, bool with_mine) const {
    std::vector<Tensor> out;
    const int64_t each = full.numel() / size();
    for (int r = 0; r < size(); ++r)
      if (with_mine || r != rank()) out.push_back(full.slice(piece.shifted(r * each)));
    return out;
  }
  void copy_mine(const Tensor& to, const Tensor& from, Stream& stream) const {
    if (!inner_.ranks && to.raw() != from.raw()) copy(to, from, stream);
  }

  void do_all_gather(Tensor full, Tensor shard, Range piece, Stream& stream, const Call& call) override {
    show({group_,
          {Collective::all_gather, full.dtype(), -1, piece.size() * size()},
          call.what,
          {shard.slice(piece)},
          parts(full, piece, false)},
         stream, [&](Communicator& ranks) {
           ranks.all_gather(full, shard, stream, {.what = call.what, .within = piece});
         });
    copy_mine(full.slice(piece.shifted(rank() * shard.numel())), shard.slice(piece), stream);
  }
  void do_reduce_scatter(Tensor shard, Tensor full, Range piece, Stream& stream, const Call& call) override {
    show({group_,
          {Collective::reduce_scatter, full.dtype(), -1, piece.size() * size(), call.by},
          call.what,
          parts(full, piece, true),
          {shard.slice(piece)}},
         stream, [&](Communicator& ranks) {
           ranks.reduce_scatter(shard, full, stream, {.what = call.what, .within = piece, .by = call.by});
         });
  }
  void do_all_reduce(Tensor t, Stream& stream, const Call& call) override {
    show({group_, {Collective::all_reduce, t.dtype(), -1, t.numel(), call.by}, call.what, {t}, {t}}, stream,
         [&](Communicator& ranks) { ranks.all_reduce(t, stream, {.what = call.what, .by = call.by}); });
  }
  void do_broadcast(Tensor t, int root, Stream& stream, const Call& call) override {
    SeenCall seen{group_, {Collective::broadcast, t.dtype(), root, t.numel()}, call.what, {}, {}};
    (root == rank() ? seen.sent : seen.received) = {t};
    show(std::move(seen), stream,
         [&](Communicator& ranks) { ranks.broadcast(t, root, stream, {.what = call.what}); });
  }
  // Passes the whole call on at its first piece, because the inner communicator cuts it again.
  void do_all_to_all(Tensor out, Tensor in, Range piece, Stream& stream, const Call& call) override {
    if (piece.begin > 0) return;
    const Range block{0, in.numel() / size()};
    show({group_,
          {Collective::all_to_all, in.dtype(), -1, in.numel()},
          call.what,
          parts(in, block, false),
          parts(out, block, false)},
         stream, [&](Communicator& ranks) { ranks.all_to_all(out, in, stream, call); });
    const Range mine = block.shifted(rank() * block.size());
    copy_mine(out.slice(mine), in.slice(mine), stream);
  }
  void do_send(Tensor t, int to, Stream& stream, const Call& call) override {
    show({group_, {Collective::send, t.dtype(), to, t.numel()}, call.what, {t}, {}}, stream,
         [&](Communicator& ranks) { ranks.send(t, to, stream, {.what = call.what}); });
  }
  void do_recv(Tensor t, int from, Stream& stream, const Call& call) override {
    show({group_, {Collective::recv, t.dtype(), from, t.numel()}, call.what, {}, {t}}, stream,
         [&](Communicator& ranks) { ranks.recv(t, from, stream, {.what = call.what}); });
  }
  void do_barrier(Stream& stream, const Call& call) override {
    show({group_, {Collective::barrier}, call.what, {}, {}}, stream,
         [&](Communicator& ranks) { ranks.barrier(stream, call); });
  }

  PlannedGroup group_;
  Inner inner_;
  CallTap& tap_;
};

}  // namespace

std::unique_ptr<Communicator> tapped_communicator(Communicator& ranks, CallTap& tap) {
  return std::make_unique<TappedCommunicator>(PlannedGroup{"world", ranks.rank(), ranks.size()}, ranks.name(),
                                              TappedCommunicator::Inner{&ranks}, tap);
}

std::unique_ptr<Communicator> lone_communicator(int rank, int size, CallTap& tap) {
  if (size == 1) return self_communicator("world");
  return std::make_unique<TappedCommunicator>(PlannedGroup{"world", rank, size}, "world",
                                              TappedCommunicator::Inner{}, tap);
}

}  // namespace cleave::comm
