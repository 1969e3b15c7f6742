#include "comm/ipc/collective_steps.h"

namespace cleave::comm {
namespace {

// Up to this size every rank computes the whole sum, which saves a wait and a copy.
constexpr int64_t kDirectStepBytes = 64 << 10;
constexpr int64_t kAlignment = 64;  // of the blocks in a slot

template <class Body>
void in_chunks(Range range, int64_t most, Body body) {
  for (int64_t begin = range.begin; begin < range.end; begin += most)
    body(Range{begin, std::min(range.end, begin + most)});
}

}  // namespace

IpcStepBuilder::IpcStepBuilder(int rank, int size, int64_t slot_bytes, int slots, uint32_t start)
    : rank_(rank), size_(size), slot_bytes_(slot_bytes), slots_(slots), chunk_(start) {
  CHECK(slot_bytes >= kAlignment * size && slots > 0, "{} slots of {} bytes for {} ranks", slots, slot_bytes,
        size);
}

// A slot may be refilled when all ranks are done with its previous contents.
void IpcStepBuilder::begin_chunk(IpcSteps& steps) {
  ++chunk_;
  wait_for(steps, IpcWord::done, chunk_ - uint32_t(slots_));
}

void IpcStepBuilder::wait_for(IpcSteps& steps, IpcWord word, uint32_t value) const {
  for (int r = 0; r < size_; ++r)
    if (r != rank_) steps.push_back({.kind = Kind::wait, .rank = r, .word = word, .value = value});
}

void IpcStepBuilder::signal(IpcSteps& steps, IpcWord word) const {
  steps.push_back({.kind = Kind::signal, .word = word, .value = chunk_});
}

void IpcStepBuilder::put_blocks(IpcSteps& steps, int64_t from, int64_t stride, int64_t room,
                                int64_t bytes) const {
  for (int r = 0; r < size_; ++r)
    if (r != rank_)
      steps.push_back(
          {.kind = Kind::put, .from = from + r * stride, .to = slot() + r * room, .bytes = bytes});
}

int64_t IpcStepBuilder::block_most(int64_t element) const {
  return slot_bytes_ / size_ / kAlignment * kAlignment / element;
}

IpcSteps IpcStepBuilder::all_gather(int64_t element, int64_t shard, Range piece) {
  IpcSteps steps;
  in_chunks(piece, slot_bytes_ / element, [&](Range c) {
    const int64_t at = c.begin * element, bytes = c.size() * element;
    begin_chunk(steps);
    steps.push_back({.kind = Kind::put, .from = at, .to = slot(), .bytes = bytes});
    signal(steps, IpcWord::ready);
    steps.push_back({.kind = Kind::move, .from = at, .to = rank_ * shard * element + at, .bytes = bytes});
    wait_for(steps, IpcWord::ready, chunk_);
    for (int r = 0; r < size_; ++r)
      if (r != rank_)
        steps.push_back(
            {.kind = Kind::get, .rank = r, .from = slot(), .to = r * shard * element + at, .bytes = bytes});
    signal(steps, IpcWord::done);
  });
  return steps;
}

IpcSteps IpcStepBuilder::reduce_scatter(int64_t element, int64_t shard, Range piece) {
  IpcSteps steps;
  const int64_t most = block_most(element), room = most * element;
  in_chunks(piece, most, [&](Range c) {
    const int64_t at = c.begin * element, bytes = c.size() * element;
    begin_chunk(steps);
    put_blocks(steps, at, shard * element, room, bytes);
    signal(steps, IpcWord::ready);
    wait_for(steps, IpcWord::ready, chunk_);
    steps.push_back({.kind = Kind::reduce,
                     .from = slot() + rank_ * room,
                     .to = at,
                     .own = rank_ * shard * element + at,
                     .bytes = bytes});
    signal(steps, IpcWord::done);
  });
  return steps;
}

IpcSteps IpcStepBuilder::all_to_all(int64_t element, int64_t block, Range piece) {
  IpcSteps steps;
  const int64_t most = block_most(element), room = most * element;
  in_chunks(piece, most, [&](Range c) {
    const int64_t bytes = c.size() * element;
    const auto at = [&](int r) { return (r * block + c.begin) * element; };
    begin_chunk(steps);
    put_blocks(steps, at(0), block * element, room, bytes);
    signal(steps, IpcWord::ready);
    steps.push_back({.kind = Kind::move, .from = at(rank_), .to = at(rank_), .bytes = bytes});
    wait_for(steps, IpcWord::ready, chunk_);
    for (int r = 0; r < size_; ++r)
      if (r != rank_)
        steps.push_back(
            {.kind = Kind::get, .rank = r, .from = slot() + rank_ * room, .to = at(r), .bytes = bytes});
    signal(steps, IpcWord::done);
  });
  return steps;
}

IpcSteps IpcStepBuilder::all_reduce(int64_t element, int64_t numel) {
  IpcSteps steps;
  in_chunks({0, numel}, slot_bytes_ / element, [&](Range c) { all_reduce_chunk(steps, element, c); });
  return steps;
}

void IpcStepBuilder::all_reduce_chunk(IpcSteps& steps, int64_t element, Range c) {
  const int64_t at = c.begin * element, bytes = c.size() * element;
  const bool direct = size_ == 2 || bytes <= kDirectStepBytes;
  const auto of_rank = [&](int r) {
    const Range all = direct ? Range{0, c.size()} : part(c.size(), size_, r);
    return Range{all.begin * element, all.end * element};
  };
  const Range mine = of_rank(rank_);
  begin_chunk(steps);
  steps.push_back({.kind = Kind::put, .from = at, .to = slot(), .bytes = bytes});
  signal(steps, IpcWord::ready);
  wait_for(steps, IpcWord::ready, chunk_);
  steps.push_back({.kind = Kind::reduce,
                   .from = slot() + mine.begin,
                   .to = at + mine.begin,
                   .own = at + mine.begin,
                   .bytes = mine.size()});
  if (!direct) {
    // No other rank reads this part of the slot before the sum is in it.
    steps.push_back(
        {.kind = Kind::put, .from = at + mine.begin, .to = slot() + mine.begin, .bytes = mine.size()});
    signal(steps, IpcWord::reduced);
    wait_for(steps, IpcWord::reduced, chunk_);
    for (int r = 0; r < size_; ++r)
      if (const Range theirs = of_rank(r); r != rank_)
        steps.push_back({.kind = Kind::get,
                         .rank = r,
                         .from = slot() + theirs.begin,
                         .to = at + theirs.begin,
                         .bytes = theirs.size()});
  }
  signal(steps, IpcWord::done);
}

IpcSteps IpcStepBuilder::broadcast(int64_t element, int64_t numel, int root) {
  IpcSteps steps;
  in_chunks({0, numel}, slot_bytes_ / element, [&](Range c) {
    const int64_t at = c.begin * element, bytes = c.size() * element;
    begin_chunk(steps);
    if (rank_ == root) steps.push_back({.kind = Kind::put, .from = at, .to = slot(), .bytes = bytes});
    signal(steps, IpcWord::ready);  // other ranks only signal arrival
    if (rank_ != root) {
      steps.push_back({.kind = Kind::wait, .rank = root, .word = IpcWord::ready, .value = chunk_});
      steps.push_back({.kind = Kind::get, .rank = root, .from = slot(), .to = at, .bytes = bytes});
    }
    signal(steps, IpcWord::done);
  });
  return steps;
}

IpcSteps IpcStepBuilder::send(int64_t bytes) {
  CHECK(bytes <= slot_bytes_, "a message of {} bytes for a slot of {}", bytes, slot_bytes_);
  IpcSteps steps;
  begin_chunk(steps);
  steps.push_back({.kind = Kind::put, .to = slot(), .bytes = bytes});
  signal(steps, IpcWord::ready);
  return steps;
}

IpcSteps IpcStepBuilder::recv(int64_t bytes) {
  IpcSteps steps;
  ++chunk_;
  wait_for(steps, IpcWord::ready, chunk_);
  steps.push_back({.kind = Kind::get, .rank = 0, .from = slot(), .bytes = bytes});
  signal(steps, IpcWord::done);
  return steps;
}

}  // namespace cleave::comm
