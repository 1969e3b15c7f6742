#include "device/arena.h"

#include <gtest/gtest.h>

namespace cleave {
namespace {

// The same requests for a dry and a real arena.
void take_some(Arena& arena) {
  arena.take(DType::fp32, {3, 5});
  const int64_t mark = arena.mark();
  arena.take(DType::bf16, {1000});
  arena.release(mark);
  arena.take(DType::uint8, {1});
}

TEST(Arena, DryRunFindsTheBytesTheRealOneNeeds) {
  Arena dry;
  take_some(dry);
  EXPECT_EQ(dry.peak_bytes(), 64 + 2048);
  EXPECT_FALSE(dry.take(DType::fp32, {4}).raw() != nullptr);
  Memory memory;
  const Buffer bytes =
      memory.allocate(MemoryKind::device, Category::activations, DType::uint8, {64 + 2048}, "arena");
  Arena real(bytes);
  take_some(real);
  EXPECT_EQ(real.peak_bytes(), 64 + 2048);
}

TEST(Arena, ReturnsAlignedTensorsThatDoNotOverlap) {
  Memory memory;
  const Buffer bytes =
      memory.allocate(MemoryKind::device, Category::activations, DType::uint8, {1024}, "arena");
  Arena arena(bytes);
  const Tensor a = arena.take(DType::uint8, {7}), b = arena.take(DType::fp32, {8});
  EXPECT_EQ(reinterpret_cast<uintptr_t>(a.raw()) % 64, 0u);
  EXPECT_EQ(static_cast<std::byte*>(b.raw()) - static_cast<std::byte*>(a.raw()), 64);
}

TEST(Arena, FailsBeyondItsCapacity) {
  Memory memory;
  const Buffer bytes =
      memory.allocate(MemoryKind::device, Category::activations, DType::uint8, {128}, "arena");
  Arena arena(bytes);
  arena.take(DType::fp32, {32});
  EXPECT_THROW(arena.take(DType::uint8, {1}), Error);
}

}  // namespace
}  // namespace cleave
