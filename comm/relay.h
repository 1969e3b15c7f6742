// Runs CPU transports on CUDA streams: copies inputs to the stream's pinned memory, runs the transport on a
// worker thread, and copies outputs back, all in stream order without blocking the caller. All ranks cut a
// call into the same pieces, because their pinned memory has the same size.
#pragma once
#include "device/copy.h"

namespace cleave::comm {

class Relay {
 public:
  // Runs `task` on the worker, between the stream's earlier and later work. stream.synchronize() throws its
  // error.
  void run(Stream& stream, std::function<void()> task);

 private:
  Stream worker_{Stream::Mode::worker};
};

struct Direction {
  bool in = false, out = false;  // the transport reads or writes the tensor
};

// Calls body(t) on a CPU stream, and body(piece) for pieces of t in pinned memory on a CUDA stream.
template <class Body>
void staged(const Tensor& t, Direction direction, Stream& stream, Body body) {
  if (!stream.on_cuda()) return body(t);
  const Tensor pinned = stream.pinned();
  const int64_t most = pinned.bytes() / size_of(t.dtype());
  for (Range r{0, 0}; r.begin < t.numel(); r.begin = r.end) {
    r.end = std::min(t.numel(), r.begin + most);
    const Tensor host(pinned.raw(), t.dtype(), {r.size()}, MemoryKind::pinned);
    if (direction.in) copy(host, t.slice(r), stream);
    body(host);
    if (direction.out) copy(t.slice(r), host, stream);
  }
}

// Calls body(full, shard, piece) for collectives between a shard and `size` contiguous shards; `piece` is a
// range within each. On a CUDA stream, `full` is a set of pieces in pinned memory and `shard` is this rank's
// part of it.
enum class Shards : uint8_t { gather, scatter };
struct ShardCall {
  Tensor full, shard;
  Range piece;
  int rank = 0, size = 1;
  Shards kind = Shards::gather;
};
template <class Body>
void staged(const ShardCall& c, Stream& stream, Body body) {
  if (!stream.on_cuda()) return body(c.full, c.shard, c.piece);
  const Tensor pinned = stream.pinned();
  const int64_t most = pinned.bytes() / size_of(c.full.dtype()) / c.size, stride = c.shard.numel();
  CHECK(most > 0, "{} ranks share {} bytes of pinned memory", c.size, pinned.bytes());
  for (Range r{c.piece.begin, 0}; r.begin < c.piece.end; r.begin = r.end) {
    r.end = std::min(c.piece.end, r.begin + most);
    const int64_t n = r.size();
    const Tensor host(pinned.raw(), c.full.dtype(), {n * c.size}, MemoryKind::pinned);
    const Tensor mine = host.slice({c.rank * n, (c.rank + 1) * n});
    auto each = [&](auto move) {
      for (int k = 0; k < c.size; ++k)
        move(c.full.slice(r.shifted(k * stride)), host.slice({k * n, (k + 1) * n}));
    };
    const bool gather = c.kind == Shards::gather;
    if (gather) copy(mine, c.shard.slice(r), stream);
    if (!gather) each([&](Tensor gpu, Tensor cpu) { copy(cpu, gpu, stream); });
    body(host, mine, Range{0, n});
    if (gather) each([&](Tensor gpu, Tensor cpu) { copy(gpu, cpu, stream); });
    if (!gather) copy(c.shard.slice(r), mine, stream);
  }
}

// Calls body(out, in, piece) for an exchange of blocks, with `piece` of each block. On a CUDA stream, pieces
// of all blocks are in pinned memory, one half per direction.
template <class Body>
void staged_blocks(Tensor out, Tensor in, Range piece, int size, Stream& stream, Body body) {
  if (!stream.on_cuda()) return body(out, in, piece);
  const Tensor pinned = stream.pinned();
  const int64_t most = pinned.bytes() / 2 / size_of(in.dtype()) / size, block = in.numel() / size;
  CHECK(most > 0, "{} ranks share {} bytes of pinned memory", size, pinned.bytes());
  for (Range r{piece.begin, 0}; r.begin < piece.end; r.begin = r.end) {
    r.end = std::min(piece.end, r.begin + most);
    const int64_t n = r.size();
    auto* half = static_cast<std::byte*>(pinned.raw()) + most * size * size_of(in.dtype());
    const Tensor leaving(pinned.raw(), in.dtype(), {n * size}, MemoryKind::pinned),
        coming(half, in.dtype(), {n * size}, MemoryKind::pinned);
    for (int k = 0; k < size; ++k)
      copy(leaving.slice({k * n, (k + 1) * n}), in.slice(r.shifted(k * block)), stream);
    body(coming, leaving, Range{0, n});
    for (int k = 0; k < size; ++k)
      copy(out.slice(r.shifted(k * block)), coming.slice({k * n, (k + 1) * n}), stream);
  }
}

}  // namespace cleave::comm
