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

// `before` and `after`: copies from and to the memory of a GPU, around the call of `use` with the bytes.
template <class Use>
void MovedBytes::each(const std::vector<Tensor>& tensors, Stream& stream, const Use& use, bool before,
                      bool after) {
  for (const Tensor& t : tensors) {
    if (t.bytes() == 0) continue;
    if (!stream.on_cuda() || t.memory() != MemoryKind::device) {
      stream.enqueue([use, t] { use(address_of(t), t.bytes()); });
      continue;
    }
    each_piece(t, [&](const Tensor& piece) {
      const Tensor here = staging(stream).slice({0, piece.numel()});
      if (before) copy(here, piece, stream);
      stream.enqueue([use, here] { use(address_of(here), here.bytes()); });
      if (after) copy(piece, here, stream);
    });
  }
}

void MovedBytes::read(const std::vector<Tensor>& from, Stream& stream, const Take& take) {
  each(from, stream, take, true, false);
}

void MovedBytes::write(const std::vector<Tensor>& to, Stream& stream, const Give& give) {
  each(to, stream, give, false, true);
}

}  // namespace cleave::runtime
