// Files as memory: compares every byte with a plain array, for both engines.
#include "offload/disk_file.h"

#include <gtest/gtest.h>

#include <random>

#include "../scratch.h"

namespace cleave::offload {
namespace {

using Engine = DiskOptions::Engine;

Tensor bytes_at(std::byte* data, int64_t n) { return {data, DType::uint8, {n}, MemoryKind::host}; }

class DiskFileTest : public testing::TestWithParam<Engine> {
 protected:
  DiskOptions options(int64_t block, int depth) { return {block, depth, depth, GetParam()}; }
  Scratch scratch_;
  Memory memory_;
};

TEST_P(DiskFileTest, EqualsAnArrayForAnyOffsetSizeAndAddress) {
  constexpr int64_t kBytes = 300'001;
  DiskFile file(memory_, scratch_.folder(), "state", {{Category::master, kBytes}}, options(8192, 3));
  std::vector<std::byte> reference(kBytes), memory(kBytes + 8192);
  std::mt19937_64 random(7);
  auto below = [&](int64_t n) { return int64_t(random() % uint64_t(n)); };
  Stream stream;
  for (int round = 0; round < 400; ++round) {
    const int64_t grain = round % 3 == 0 ? 4096 : 1;
    const int64_t offset = below(kBytes) / grain * grain, most = kBytes - offset;
    const int64_t n = round % 2 ? below(most + 1) : std::min<int64_t>(most, below(9000));
    auto* base = reinterpret_cast<std::byte*>(round_up(reinterpret_cast<intptr_t>(memory.data()), 4096));
    std::byte* at = base + (round % 4 == 0 ? offset % 4096 : below(4096) / 4 * 4 % 3840);
    const Tensor tensor = bytes_at(at, std::min<int64_t>(n, memory.data() + memory.size() - at));
    if (random() % 2) {
      for (int64_t i = 0; i < tensor.bytes(); ++i) at[i] = std::byte(random());
      std::copy(at, at + tensor.bytes(), reference.begin() + offset);
      file.write(tensor, offset, stream);
    } else {
      file.read(tensor, offset, stream);
      ASSERT_TRUE(std::equal(at, at + tensor.bytes(), reference.begin() + offset))
          << "round " << round << ": " << tensor.bytes() << " bytes at " << offset;
    }
  }
  std::vector<std::byte> whole(kBytes);
  file.read(bytes_at(whole.data(), kBytes), 0, stream);
  EXPECT_EQ(whole, reference);
}

TEST_P(DiskFileTest, StartsWithZeros) {
  DiskFile file(memory_, scratch_.folder(), "state", {{Category::master, 10'000}}, options(4096, 2));
  std::vector<std::byte> whole(10'000, std::byte{9});
  Stream stream;
  file.read(bytes_at(whole.data(), 10'000), 0, stream);
  EXPECT_EQ(whole, std::vector<std::byte>(10'000));
}

TEST_P(DiskFileTest, OrdersReaderAndWriterByEventsOnly) {
  constexpr int64_t kTile = 70'000, kTiles = 24;
  DiskFile file(memory_, scratch_.folder(), "state", {{Category::master, kTile * kTiles}}, options(8192, 4));
  Stream reader(Stream::Mode::worker), writer(Stream::Mode::worker);
  std::vector<std::vector<std::byte>> out(kTiles), back(kTiles, std::vector<std::byte>(kTile));
  for (int64_t i = 0; i < kTiles; ++i) {
    out[size_t(i)].assign(kTile, std::byte(i + 1));
    file.write(bytes_at(out[size_t(i)].data(), kTile), i * kTile, writer);
    reader.wait(writer.record());
    file.read(bytes_at(back[size_t(i)].data(), kTile), i * kTile, reader);
  }
  reader.synchronize();
  EXPECT_EQ(back, out);
}

TEST_P(DiskFileTest, IsUnlistedAndCountsItsBytes) {
  {
    DiskFile file(memory_, scratch_.folder(), "state",
                  {{Category::master, 4096}, {Category::optimizer_state, 100}}, options(4096, 2));
    EXPECT_TRUE(std::filesystem::is_empty(scratch_.folder()));
    EXPECT_EQ(memory_.live().at(MemoryKind::disk, Category::master), 4096);
    EXPECT_EQ(memory_.live().at(MemoryKind::disk, Category::optimizer_state), 100);
    EXPECT_EQ(file.bytes(), 4196);
  }
  EXPECT_EQ(memory_.live().total(MemoryKind::disk), 0);
  EXPECT_TRUE(std::filesystem::is_empty(scratch_.folder()));
}

INSTANTIATE_TEST_SUITE_P(engines, DiskFileTest, testing::Values(Engine::any, Engine::threads),
                         [](const auto& at) { return at.param == Engine::threads ? "threads" : "best"; });

TEST(DiskFile, DryOnlyCounts) {
  Memory memory({}, Memory::Mode::dry);
  DiskFile file(memory, "/no/such/folder", "state", {{Category::master, int64_t{1} << 50}});
  Stream stream(Stream::Mode::dry);
  file.read(Tensor(nullptr, DType::uint8, {1 << 20}), 0, stream);
  EXPECT_EQ(memory.peak().at(MemoryKind::disk, Category::master), int64_t{1} << 50);
}

TEST(DiskFile, MeasuresRatesAndLeavesNoFiles) {
  const Scratch scratch;
  const DiskRates rates = measure_disk(scratch.folder(), 1 << 20, {}, "nvme_path");
  EXPECT_GT(rates.read, 0);
  EXPECT_GT(rates.write, 0);
  EXPECT_TRUE(std::filesystem::is_empty(scratch.folder()));
}

}  // namespace
}  // namespace cleave::offload
