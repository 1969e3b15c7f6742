#include "device/memory.h"
#include "tests/scratch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

namespace cleave {
namespace {

TEST(Memory, CountsLiveAndPeakBytesByKindAndCategory) {
  Memory memory;
  {
    const Buffer a = memory.allocate(MemoryKind::device, Category::weights, DType::fp32, {10}, "a");
    const Buffer b = memory.allocate(MemoryKind::host, Category::optimizer_state, DType::bf16, {7}, "b");
    EXPECT_EQ(memory.live().at(MemoryKind::device, Category::weights), 40);
    EXPECT_EQ(memory.live().at(MemoryKind::host, Category::optimizer_state), 14);
    EXPECT_EQ(memory.live().total(MemoryKind::device), 40);
  }
  EXPECT_EQ(memory.live(), MemoryTable{});
  EXPECT_EQ(memory.peak().at(MemoryKind::device, Category::weights), 40);
}

TEST(Memory, ReturnsZeroedAlignedMemoryOfAnySize) {
  Memory memory;
  for (int64_t bytes :
       {int64_t{0}, int64_t{1}, int64_t{63}, int64_t{4097}, int64_t{2} << 20, (int64_t{3} << 20) + 5}) {
    const Buffer b = memory.allocate(MemoryKind::device, Category::staging, DType::uint8, {bytes}, "b");
    const auto span = b.tensor().span<uint8_t>();
    EXPECT_EQ(reinterpret_cast<uintptr_t>(span.data()) % 64, 0u);
    EXPECT_TRUE(std::all_of(span.begin(), span.end(), [](uint8_t x) { return x == 0; }));
    std::fill(span.begin(), span.end(), uint8_t{1});
  }
}

TEST(Memory, DryRunCountsWithoutAllocating) {
  Memory memory({}, Memory::Mode::dry);
  const Buffer b =
      memory.allocate(MemoryKind::device, Category::weights, DType::fp32, {int64_t{1} << 40}, "huge");
  EXPECT_EQ(memory.live().total(Category::weights), int64_t{4} << 40);
  // Addresses are distinct, as real code compares them, and inaccessible.
  const Buffer c = memory.allocate(MemoryKind::device, Category::weights, DType::fp32, {1}, "small");
  EXPECT_GE(static_cast<std::byte*>(c.tensor().raw()) - static_cast<std::byte*>(b.tensor().raw()),
            b.tensor().bytes());
}

TEST(Memory, FailsBeyondALimitAndNamesTheLargestCategory) {
  Memory memory({.device_bytes = 1000, .host_bytes = 100});
  const Buffer a = memory.allocate(MemoryKind::device, Category::gradients, DType::uint8, {900}, "a");
  expect_error(Exit::memory, {"the second", "gradients", "grad_accum_dtype"}, [&] {
    memory.allocate(MemoryKind::device, Category::weights, DType::uint8, {101}, "the second");
  });
  EXPECT_EQ(memory.live().total(MemoryKind::device), 900);
  const Buffer pinned = memory.allocate(MemoryKind::pinned, Category::staging, DType::uint8, {60}, "pinned");
  EXPECT_THROW(memory.allocate(MemoryKind::host, Category::master, DType::uint8, {41}, "host"), Error);
}

TEST(Memory, MovedBuffersAreReturnedOnce) {
  Memory memory;
  Buffer a = memory.allocate(MemoryKind::device, Category::weights, DType::uint8, {64}, "a");
  Buffer b = std::move(a);
  EXPECT_TRUE(b.defined());
  b = memory.allocate(MemoryKind::device, Category::weights, DType::uint8, {32}, "b");
  EXPECT_EQ(memory.live().total(Category::weights), 32);
}

// A custom allocator that counts the outstanding bytes.
int64_t out_there = 0;
MemoryBlock give(Device, int64_t bytes) {
  out_there += bytes;
  return {std::calloc(1, size_t(bytes)), [](void* p, int64_t n) {
            out_there -= n;
            std::free(p);
          }};
}

constexpr int64_t kGranule = 4096;

TEST(Memory, MovedCategoriesUseTheTransportsAllocatorAndGranularity) {
  Memory memory({}, Memory::Mode::real, {}, {kGranule, give});
  Memory plan({}, Memory::Mode::dry, {}, {kGranule});
  std::vector<Buffer> buffers, planned;
  for (const MemoryKind kind : {MemoryKind::device, MemoryKind::host})
    for (int c = 0; c < kCategories; ++c)
      for (auto [from, to] : {std::pair{&memory, &buffers}, {&plan, &planned}})
        to->push_back(from->allocate(kind, Category(c), DType::fp32, {c == 2 ? 0 : 1000 + c}, "values"));
  const std::vector<Category> moved = {Category::weights, Category::gradients, Category::buckets,
                                       Category::gathered};
  for (int c = 0; c < kCategories; ++c) {
    const bool moves = std::find(moved.begin(), moved.end(), Category(c)) != moved.end();
    EXPECT_EQ(memory.live().at(MemoryKind::device, Category(c)), moves    ? kGranule
                                                                 : c == 2 ? 0
                                                                          : 4 * (1000 + c));
    EXPECT_EQ(memory.live().at(MemoryKind::host, Category(c)), c == 2 ? 0 : 4 * (1000 + c)) << c;
  }
  EXPECT_EQ(plan.live(), memory.live()) << "a plan counts whole granules, too";
  EXPECT_EQ(out_there, 4 * kGranule);
  ASSERT_EQ(memory.moved().size(), 4u);
  for (const Tensor& t : memory.moved()) EXPECT_EQ(t.bytes(), kGranule) << "whole pieces";
  EXPECT_EQ(memory.moved()[0].raw(), buffers[0].tensor().raw());
  EXPECT_TRUE(plan.moved().empty());

  buffers.erase(buffers.begin());
  EXPECT_EQ(memory.moved().size(), 3u);
  EXPECT_EQ(out_there, 3 * kGranule);
  buffers.clear();
  EXPECT_EQ(memory.live(), MemoryTable{});
  EXPECT_EQ(out_there, 0);
}

TEST(Memory, MovedCategoriesUseTheDeviceWithoutATransportAllocator) {
  Memory memory({.device_bytes = 2 * kGranule}, Memory::Mode::real, {}, {kGranule});
  const Buffer b = memory.allocate(MemoryKind::device, Category::weights, DType::uint8, {kGranule + 1}, "b");
  EXPECT_EQ(memory.live().total(Category::weights), 2 * kGranule);
  EXPECT_EQ(b.tensor().numel(), kGranule + 1);
  EXPECT_TRUE(memory.moved().empty());
  EXPECT_THROW(memory.allocate(MemoryKind::device, Category::weights, DType::uint8, {1}, "one more"), Error)
      << "the whole granule counts against the limit";
  Memory without({}, Memory::Mode::real, {}, {kGranule, [](Device, int64_t) { return MemoryBlock{}; }});
  EXPECT_THROW(without.allocate(MemoryKind::device, Category::weights, DType::uint8, {1}, "refused"), Error);
  EXPECT_TRUE(without.moved().empty());
}

TEST(Tensor, SlicesViewsAndRowsAreChecked) {
  float data[12] = {};
  const Tensor t(data, DType::fp32, {3, 4});
  EXPECT_EQ(t.slice({4, 8}).raw(), data + 4);
  EXPECT_EQ(t.rows({1, 3}).shape(), (Shape{2, 4}));
  EXPECT_EQ(t.rows({1, 3}).raw(), data + 4);
  EXPECT_EQ(t.view({2, 6}).dim(1), 6);
  EXPECT_THROW(t.slice({4, 13}), Error);
  EXPECT_THROW(t.slice({-1, 3}), Error);
  EXPECT_THROW(t.view({5}), Error);
  EXPECT_THROW(t.rows({2, 4}), Error);
  EXPECT_THROW(t.as<int32_t>(), Error);
}

}  // namespace
}  // namespace cleave
