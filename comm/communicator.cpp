#include "comm/communicator.h"

#include <algorithm>

#include "comm/reduce.h"
#include "device/copy.h"

namespace cleave::comm {
namespace {

bool overlap(const Tensor& a, const Tensor& b) {
  const auto* pa = static_cast<const std::byte*>(a.raw());
  const auto* pb = static_cast<const std::byte*>(b.raw());
  return a.bytes() > 0 && b.bytes() > 0 && pa < pb + b.bytes() && pb < pa + a.bytes();
}

void check_shards(const Communicator& c, const Tensor& full, const Tensor& shard, Collective op) {
  CHECK(full.dtype() == shard.dtype(), "{} in group '{}': different types (full {}, shard {})", name_of(op),
        c.name(), name_of(full.dtype()), name_of(shard.dtype()));
  CHECK(full.numel() == shard.numel() * c.size(),
        "{} in group '{}': full has the wrong size (got {} elements, expected {} ranks x {})", name_of(op),
        c.name(), full.numel(), c.size(), shard.numel());
  const Tensor mine = full.slice({c.rank() * shard.numel(), (c.rank() + 1) * shard.numel()});
  CHECK(mine.raw() == shard.raw() || !overlap(full, shard),
        "{} in group '{}': shard overlaps full without being its slice {}", name_of(op), c.name(), c.rank());
}

void check_blocks(const Communicator& c, const Tensor& out, const Tensor& in) {
  CHECK(out.dtype() == in.dtype() && out.numel() == in.numel(),
        "all_to_all in group '{}': input and output differ (got {} {} and {} {})", c.name(), in.numel(),
        name_of(in.dtype()), out.numel(), name_of(out.dtype()));
  CHECK(in.numel() % c.size() == 0,
        "all_to_all in group '{}': {} elements are not one block for each of {} ranks", c.name(), in.numel(),
        c.size());
  CHECK(!overlap(out, in), "all_to_all in group '{}': input and output overlap", c.name());
}

void check_reduction(const Communicator& c, const Tensor& t, Collective op) {
  CHECK(can_reduce(t.dtype()), "{} in group '{}': {} cannot be reduced", name_of(op), c.name(),
        name_of(t.dtype()));
}

void copy_unless_same(Tensor to, Tensor from, Stream& stream) {
  if (to.raw() != from.raw()) copy(to, from, stream);
}

// Calls body(piece) for pieces of the range of at most `most` elements, at least one.
template <class Body>
void cut(Range all, int64_t most, Body body) {
  most = std::max<int64_t>(1, most);
  for (int64_t begin = all.begin; begin < all.end; begin += most)
    body(Range{begin, std::min(all.end, begin + most)});
}

Range part_of_shard(const Tensor& shard, const Call& call) {
  return intersect({0, shard.numel()}, call.within);
}

// A group of one rank: public methods return before they reach these bodies.
class SelfCommunicator final : public Communicator {
 public:
  explicit SelfCommunicator(const std::string& name) : Communicator(0, 1, name) {}
  std::unique_ptr<Communicator> split(const Subgroup&, const std::string& name) override {
    return self_communicator(name);
  }
  void abort(const std::string&) override {}

 private:
  [[noreturn]] void never() { fail(Exit::internal, "group '{}' has one rank, which has no peer", name()); }
  void do_all_gather(Tensor, Tensor, Range, Stream&, const Call&) override { never(); }
  void do_reduce_scatter(Tensor, Tensor, Range, Stream&, const Call&) override { never(); }
  void do_all_reduce(Tensor, Stream&, const Call&) override { never(); }
  void do_broadcast(Tensor, int, Stream&, const Call&) override { never(); }
  void do_all_to_all(Tensor, Tensor, Range, Stream&, const Call&) override { never(); }
  void do_send(Tensor, int, Stream&, const Call&) override { never(); }
  void do_recv(Tensor, int, Stream&, const Call&) override { never(); }
  void do_barrier(Stream&, const Call&) override { never(); }
};

}  // namespace

void Communicator::all_gather(Tensor full, Tensor shard, Stream& stream, const Call& call) {
  check_shards(*this, full, shard, Collective::all_gather);
  const Range mine = part_of_shard(shard, call);
  if (size_ == 1) return copy_unless_same(full.slice(mine), shard.slice(mine), stream);
  bytes_[Collective::all_gather] += (size_ - 1) * mine.size() * size_of(shard.dtype());
  cut(mine, call.max_numel / size_, [&](Range piece) { do_all_gather(full, shard, piece, stream, call); });
}

void Communicator::reduce_scatter(Tensor shard, Tensor full, Stream& stream, const Call& call) {
  check_shards(*this, full, shard, Collective::reduce_scatter);
  check_reduction(*this, full, Collective::reduce_scatter);
  const Range mine = part_of_shard(shard, call);
  if (size_ == 1) return copy_unless_same(shard.slice(mine), full.slice(mine), stream);
  bytes_[Collective::reduce_scatter] += (size_ - 1) * mine.size() * size_of(shard.dtype());
  cut(mine, call.max_numel / size_,
      [&](Range piece) { do_reduce_scatter(shard, full, piece, stream, call); });
}

void Communicator::all_reduce(Tensor t, Stream& stream, const Call& call) {
  check_reduction(*this, t, Collective::all_reduce);
  if (size_ == 1) return;
  const int64_t mine = part(t.numel(), size_, rank_).size();
  bytes_[Collective::all_reduce] += (t.numel() - mine + mine * (size_ - 1)) * size_of(t.dtype());
  cut({0, t.numel()}, call.max_numel, [&](Range piece) { do_all_reduce(t.slice(piece), stream, call); });
}

void Communicator::broadcast(Tensor t, int root, Stream& stream, const Call& call) {
  CHECK(root >= 0 && root < size_, "broadcast in group '{}': root {} of {} ranks", name_, root, size_);
  if (size_ == 1) return;
  if (rank_ == root) bytes_[Collective::broadcast] += t.bytes();
  cut({0, t.numel()}, call.max_numel, [&](Range piece) { do_broadcast(t.slice(piece), root, stream, call); });
}

void Communicator::all_to_all(Tensor out, Tensor in, Stream& stream, const Call& call) {
  check_blocks(*this, out, in);
  if (size_ == 1) return copy(out, in, stream);
  const int64_t block = in.numel() / size_;
  bytes_[Collective::all_to_all] += (size_ - 1) * block * size_of(in.dtype());
  cut({0, block}, call.max_numel / size_, [&](Range piece) { do_all_to_all(out, in, piece, stream, call); });
}

void Communicator::send(Tensor t, int to, Stream& stream, const Call& call) {
  CHECK(to >= 0 && to < size_ && to != rank_, "send in group '{}': rank {} of {} to rank {}", name_, rank_,
        size_, to);
  bytes_[Collective::send] += t.bytes();
  cut({0, t.numel()}, call.max_numel, [&](Range piece) { do_send(t.slice(piece), to, stream, call); });
}

void Communicator::recv(Tensor t, int from, Stream& stream, const Call& call) {
  CHECK(from >= 0 && from < size_ && from != rank_, "recv in group '{}': rank {} of {} from rank {}", name_,
        rank_, size_, from);
  cut({0, t.numel()}, call.max_numel, [&](Range piece) { do_recv(t.slice(piece), from, stream, call); });
}

void Communicator::barrier(Stream& stream, const Call& call) {
  if (size_ > 1) do_barrier(stream, call);
}

std::unique_ptr<Communicator> self_communicator(const std::string& name) {
  return std::make_unique<SelfCommunicator>(name);
}

}  // namespace cleave::comm
