// Collectives over shared memory: each rank fills its slot chunk by chunk, and reads or adds the slots of the
// others in rank order.
#include <algorithm>
#include <cstring>

#include "comm/reduce.h"
#include "comm/shm/shm_group.h"

namespace cleave::comm {

using namespace shm;

namespace {

constexpr int64_t kDirectBytes = 16 << 10;

void copy_bytes(void* to, const void* from, int64_t bytes) { std::memcpy(to, from, size_t(bytes)); }

// Calls body(piece) for the chunks of `range`; the caller has already begun the first one.
template <class Next, class Body>
void in_chunks(Range range, int64_t most, Next next, Body body) {
  for (int64_t begin = range.begin; begin < range.end; begin += most) {
    if (begin != range.begin) next();
    body(Range{begin, std::min(range.end, begin + most)});
  }
}

}  // namespace

void ShmGroup::all_gather(const Waiting& w, Tensor full, Tensor shard, Range piece) {
  begin_call(w);
  const int64_t most = int64_t(kSlotBytes) / size_of(full.dtype());
  in_chunks(
      piece, most, [&] { begin_chunk(w); },
      [&](Range c) {
        const Tensor from = shard.slice(c);
        copy_bytes(slot(rank_), from.raw(), from.bytes());
        publish_and_await_all(w);
        for (int r = 0; r < size(); ++r) {
          const Tensor to = full.slice(c.shifted(r * shard.numel()));
          if (r != rank_)
            copy_bytes(to.raw(), slot(r), to.bytes());
          else if (to.raw() != from.raw())
            copy_bytes(to.raw(), from.raw(), to.bytes());
        }
        end_chunk();
      });
}

void ShmGroup::reduce_scatter(const Waiting& w, Tensor shard, Tensor full, Range piece) {
  begin_call(w);
  const int64_t element = size_of(full.dtype());
  const int64_t most = int64_t(kSlotBytes) / size() / 64 * 64 / element;
  in_chunks(
      piece, most, [&] { begin_chunk(w); },
      [&](Range c) {
        for (int r = 0; r < size(); ++r) {
          const Tensor from = full.slice(c.shifted(r * shard.numel()));
          if (r != rank_) copy_bytes(slot(rank_) + r * most * element, from.raw(), from.bytes());
        }
        publish_and_await_all(w);
        std::vector<const std::byte*> sources;
        for (int r = 0; r < size(); ++r) sources.push_back(slot(r) + rank_ * most * element);
        sources[size_t(rank_)] = static_cast<std::byte*>(full.slice(c.shifted(rank_ * shard.numel())).raw());
        reduce_in_order(w.post.by, full.dtype(), shard.slice(c).raw(), sources, c.size());
        end_chunk();
      });
}

void ShmGroup::all_to_all(const Waiting& w, Tensor out, Tensor in, Range piece) {
  begin_call(w);
  const int64_t element = size_of(in.dtype()), block = in.numel() / size();
  const int64_t most = int64_t(kSlotBytes) / size() / 64 * 64 / element;
  in_chunks(
      piece, most, [&] { begin_chunk(w); },
      [&](Range c) {
        for (int r = 0; r < size(); ++r) {
          const Tensor from = in.slice(c.shifted(r * block));
          void* to = r == rank_ ? out.slice(c.shifted(r * block)).raw() : slot(rank_) + r * most * element;
          copy_bytes(to, from.raw(), from.bytes());
        }
        publish_and_await_all(w);
        for (int r = 0; r < size(); ++r) {
          const Tensor to = out.slice(c.shifted(r * block));
          if (r != rank_) copy_bytes(to.raw(), slot(r) + rank_ * most * element, to.bytes());
        }
        end_chunk();
      });
}

void ShmGroup::all_reduce(const Waiting& w, Tensor t) {
  begin_call(w);
  const int64_t most = int64_t(kSlotBytes) / size_of(t.dtype());
  in_chunks(
      {0, t.numel()}, most, [&] { begin_chunk(w); }, [&](Range c) { all_reduce_chunk(w, t.slice(c)); });
}

void ShmGroup::all_reduce_chunk(const Waiting& w, Tensor t) {
  copy_bytes(slot(rank_), t.raw(), t.bytes());
  publish_and_await_all(w);
  // Two ranks, or little data: every rank computes the whole sum, which saves a wait and a copy.
  const bool direct = size() == 2 || t.bytes() <= kDirectBytes;
  const Range mine = direct ? Range{0, t.numel()} : part(t.numel(), size(), rank_);
  const int64_t element = size_of(t.dtype());
  std::vector<const std::byte*> sources;
  for (int r = 0; r < size(); ++r) sources.push_back(slot(r) + mine.begin * element);
  const Tensor sum = t.slice(mine);
  sources[size_t(rank_)] = static_cast<std::byte*>(sum.raw());
  reduce_in_order(w.post.by, t.dtype(), sum.raw(), sources, mine.size());
  if (direct) return end_chunk();

  // No other rank reads this part of the slot before the sum is in it.
  copy_bytes(slot(rank_) + mine.begin * element, sum.raw(), sum.bytes());
  member(rank_).reduced.store(chunk_);
  wake();
  await(w, [this](int r) { return member(r).reduced.load() >= chunk_; });
  for (int r = 0; r < size(); ++r) {
    const Tensor to = t.slice(part(t.numel(), size(), r));
    if (r != rank_) copy_bytes(to.raw(), slot(r) + part(t.numel(), size(), r).begin * element, to.bytes());
  }
  end_chunk();
}

void ShmGroup::broadcast(const Waiting& w, Tensor t, int root) {
  begin_call(w);
  const int64_t most = int64_t(kSlotBytes) / size_of(t.dtype());
  in_chunks(
      {0, t.numel()}, most, [&] { begin_chunk(w); },
      [&](Range c) {
        const Tensor here = t.slice(c);
        if (rank_ == root) copy_bytes(slot(root), here.raw(), here.bytes());
        member(rank_).ready.store(chunk_);
        wake();
        await(w, [&](int r) { return r != root || member(r).ready.load() >= chunk_; });
        if (std::exchange(first_chunk_, false)) compare(w, root);
        if (rank_ != root) copy_bytes(here.raw(), slot(root), here.bytes());
        end_chunk();
      });
}

void ShmGroup::barrier(const Waiting& w) {
  begin_call(w);
  publish_and_await_all(w);
  end_chunk();
}

std::vector<int64_t> ShmGroup::exchange(const Waiting& w, int64_t mine) {
  std::vector<int64_t> all(static_cast<size_t>(size()));
  all_gather(w, Tensor(all.data(), DType::int64, {size()}), Tensor(&mine, DType::int64, {1}), {0, 1});
  return all;
}

}  // namespace cleave::comm
