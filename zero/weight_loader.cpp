#include "zero/weight_loader.h"

#include <algorithm>

#include "device/copy.h"
#include "kernels/elementwise.h"

namespace cleave::zero {
namespace {

constexpr int64_t kPiece = int64_t{1} << 20;  // elements of staging_

// Returns words as elements of the type of the working copy; numbers stay as they are.
Tensor elements_of(Tensor values, DType type) {
  if (values.dtype() != DType::int64) return values;
  return Tensor(values.raw(), type, {values.bytes() / size_of(type)}, values.memory());
}

// Converts numbers, and copies equal types as bits.
void convert(Tensor to, Tensor from, Stream& stream) {
  if (to.dtype() == from.dtype()) return copy(to, from, stream);
  kernels::launch(kernels::Cast{.y = to, .x = from}, stream);
}

}  // namespace

WeightLoader::WeightLoader(Memory& memory, ParameterStore& store, std::vector<int> units)
    : store_(store),
      units_(std::move(units)),
      host_(memory.dry() ? Stream::Mode::dry : Stream::Mode::inline_) {
  int64_t largest = 0;
  for (const int u : units_)
    if (store.weights_slice(u).memory() == MemoryKind::device)
      largest = std::max(largest, store.weights_slice(u).numel());
  if (memory.device().is_cuda())
    staging_ = memory.allocate(MemoryKind::pinned, Category::staging, store.options().weights,
                               {std::min(largest, kPiece)}, "weights on their way to the device");
}

template <class Move>
void WeightLoader::each_piece(Tensor weights, Move move) {
  const bool far = staging_.defined() && weights.memory() == MemoryKind::device;
  for (Range r{0, 0}; r.begin < weights.numel(); r.begin = r.end) {
    r.end = far ? std::min(weights.numel(), r.begin + kPiece) : weights.numel();
    const Tensor piece = weights.slice(r);
    move(far ? staging_.tensor().slice({0, r.size()}) : piece, piece, r);
  }
}

void WeightLoader::read(int unit, int, Range range, Tensor values, Stream& compute) {
  const Tensor to = elements_of(values, store_.options().weights);
  each_piece(store_.settled_weights_slice(unit).slice(range), [&](Tensor here, Tensor weights, Range r) {
    if (here.raw() != weights.raw()) copy(here, weights, compute);
    compute.synchronize();
    convert(to.slice(r), here, host_);
  });
}

void WeightLoader::write(int unit, int, Range range, Tensor values, Stream& compute) {
  const Tensor from = elements_of(values, store_.options().weights);
  publish_before(unit);
  each_piece(store_.next_weights_slice(unit).slice(range), [&](Tensor here, Tensor weights, Range r) {
    compute.synchronize();  // the memory is free
    convert(here, from.slice(r), host_);
    if (here.raw() != weights.raw()) copy(weights, here, compute);
  });
  compute.synchronize();
}

void WeightLoader::publish_before(int unit) {
  CHECK(next_ == 0 || units_[next_ - 1] < unit, "unit {} is written after unit {} was published", unit,
        units_[next_ - 1]);
  // Publishes all units on every rank in the same order, including units with only padding here.
  for (; next_ < units_.size() && units_[next_] < unit; ++next_) store_.publish(units_[next_]);
}

void WeightLoader::publish_masters(Stream&) {
  publish_before(store_.units());
  next_ = 0;
  store_.wait_for_weights();
}

}  // namespace cleave::zero
