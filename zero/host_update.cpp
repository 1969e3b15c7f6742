#include "zero/host_update.h"

#include "device/copy.h"
#include "kernels/elementwise.h"

namespace cleave {

HostUpdate::HostUpdate(Memory& memory, DType weights, DType gradients)
    : worker_(memory.dry() ? Stream::Mode::dry : Stream::Mode::worker) {
  auto pinned = [&](DType type) {
    return memory.allocate(MemoryKind::pinned, Category::staging, type, {kTile},
                           "tiles of the host's update");
  };
  for (Buffer& b : weights_) b = pinned(weights);
  for (Buffer& b : gradients_) b = pinned(gradients);
}

void HostUpdate::update(const Optimizer& optimizer, const UpdateSlice& slice, const StepArgs& args,
                        Stream& compute) {
  const int64_t numel = slice.param.numel(), tiles = ceil_div(numel, kTile);
  auto range = [&](int64_t tile) { return Range{tile * kTile, std::min(numel, (tile + 1) * kTile)}; };
  auto part = [&](const Buffer(&slots)[2], int64_t tile) {
    return slots[tile % 2].tensor().slice({0, range(tile).size()});
  };
  Event arrived[2];
  auto fetch = [&](int64_t tile) {
    copy(part(gradients_, tile), slice.grad.slice(range(tile)), compute);
    arrived[tile % 2] = compute.record();
  };
  if (tiles > 0) fetch(0);
  for (int64_t tile = 0; tile < tiles; ++tile) {
    if (tile + 1 < tiles) fetch(tile + 1);
    worker_.wait(arrived[tile % 2]);
    UpdateSlice here{.param = slice.param.slice(range(tile)),
                     .grad = part(gradients_, tile),
                     .copy = slice.copy.defined() ? part(weights_, tile) : Tensor(),
                     .state = {},
                     .decay = slice.decay};
    for (size_t s = 0; s < slice.state.size(); ++s)
      if (slice.state[s].defined()) here.state[s] = slice.state[s].slice(range(tile));
    optimizer.update(here, args, worker_);
    compute.wait(worker_.record());
    if (slice.copy.defined()) copy(slice.copy.slice(range(tile)), part(weights_, tile), compute);
  }
}

void HostUpdate::publish(Tensor weights, Tensor master, Stream& compute) {
  const int64_t numel = weights.numel();
  for (Range r{0, 0}; r.begin < numel; r.begin = r.end) {
    r.end = std::min(numel, r.begin + kTile);
    const Tensor tile = weights_[0].tensor().slice({0, r.size()});
    worker_.wait(compute.record());  // what was in the tile has gone
    launch(Cast{.y = tile, .x = master.slice(r)}, worker_);
    compute.wait(worker_.record());
    copy(weights.slice(r), tile, compute);
  }
}

}  // namespace cleave
