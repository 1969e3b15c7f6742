#include "runtime/replay/moved_bytes.h"

#include <algorithm>

#include "device/copy.h"

namespace cleave::runtime {
namespace {

std::byte* address_of(const Tensor& t) { return static_cast<std::byte*>(t.raw()); }

// Calls work(piece) for the bytes of a tensor.
template <class Work>
void each_piece(const Tensor& t, Work work) {
  for (int64_t at = 0; at < t.bytes(); at += MovedBytes::kPiece) {
    const int64_t size = std::min(MovedBytes::kPiece, t.bytes() - at);
    work(Tensor(address_of(t) + at, DType::uint8, {size}, t.memory()));
  }
}

}  // namespace

Tensor MovedBytes::staging(const Stream& stream) {
  Buffer& buffer = pinned_[&stream];
  if (!buffer.defined())
    buffer = memory_.allocate(MemoryKind::pinned, Category::staging, DType::uint8, {kPiece},
                              "memory of calls on its way to a file");
  return buffer;
}

void MovedBytes::read(const std::vector<Tensor>& from, Stream& stream, const Take& take) {
  for (const Tensor& t : from) {
    if (t.bytes() == 0) continue;
    if (!stream.on_cuda() || t.memory() != MemoryKind::device) {
      stream.enqueue([take, t] { take(address_of(t), t.bytes()); });
      continue;
    }
    each_piece(t, [&](const Tensor& piece) {
      const Tensor here = staging(stream).slice({0, piece.numel()});
      copy(here, piece, stream);
      stream.enqueue([take, here] { take(address_of(here), here.bytes()); });
    });
  }
}

void MovedBytes::write(const std::vector<Tensor>& to, Stream& stream, const Give& give) {
  for (const Tensor& t : to) {
    if (t.bytes() == 0) continue;
    if (!stream.on_cuda() || t.memory() != MemoryKind::device) {
      stream.enqueue([give, t] { give(address_of(t), t.bytes()); });
      continue;
    }
    each_piece(t, [&](const Tensor& piece) {
      const Tensor here = staging(stream).slice({0, piece.numel()});
      stream.enqueue([give, here] { give(address_of(here), here.bytes()); });
      copy(piece, here, stream);
    });
  }
}

}  // namespace cleave::runtime
