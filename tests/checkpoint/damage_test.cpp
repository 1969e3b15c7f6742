// Any changed byte of a checkpoint is detected.
#include <gtest/gtest.h>

#include <random>

#include "tests/checkpoint/hand_made.h"
#include "tests/sampled.h"
#include "tests/scratch.h"

namespace cleave::testing {
namespace {
namespace fs = std::filesystem;

// Saves 40 tensors over three ranks, by rows, by columns and whole.
void save_many(const fs::path& dir) {
  comm::run_ranks(3, [&](comm::Communicator& world) {
    std::vector<checkpoint::Record> mine;
    for (int t = 0; t < 40; ++t) {
      const std::string name = fmt::format("h.{}.weight", t);
      const Range columns_of_mine = part(12, 3, world.rank());
      if (t % 3 == 0) mine.push_back(given("master", name, {7, 12}, {part(84, 3, world.rank())}));
      if (t % 3 == 1)
        mine.push_back(
            given("master", name, {7, 12}, columns(7, 12, columns_of_mine.begin, columns_of_mine.end)));
      if (t % 3 == 2 && t % world.size() == world.rank())
        mine.push_back(given("exp_avg", name, {50}, {{0, 50}}));
    }
    checkpoint::save_checkpoint(dir, "a", mine, R"({"step": 7, "applied": 6})", world);
  });
}

// Loads every tensor.
void load(const fs::path& dir) {
  const checkpoint::CheckpointReader reader(dir, "latest");
  for (const auto& [name, whole] : reader.manifest().tensors) {
    const checkpoint::Elements all{{0, checkpoint::numel_of(whole.shape)}};
    EXPECT_EQ(read(reader, name.first, name.second, whole.shape, all), expected(name.second, all));
  }
}

TEST(Damage, OfAnyByteOfAnyFileIsNamedAndNeverLoaded) {
  const Scratch scratch;
  save_many(scratch.folder());
  load(scratch.folder());
  std::vector<fs::path> files = {scratch.folder() / "latest"};
  for (const auto& entry : fs::directory_iterator(scratch.folder() / "a")) files.push_back(entry.path());
  ASSERT_EQ(files.size(), 5u);
  std::mt19937 random(7);
  const auto below = [&](uintmax_t n) { return std::uniform_int_distribution<uintmax_t>(0, n - 1)(random); };
  Sampled sampled;
  for (int i = 0; i < 2000; ++i) {
    if (!sampled.next()) continue;
    const fs::path& file = files[below(files.size())];
    const std::string name = fs::relative(file, scratch.folder());
    const std::string text = scratch.read(name);
    const size_t at = below(name == "latest" ? 1 : text.size());  // blanks may follow the name
    std::string other = text;
    switch (i % 4) {
      case 0:
        other[at] = char(other[at] ^ (1 << below(8)));
        break;  // one bit
      case 1:
        other[at] = char(other[at] + 1 + int(below(255)));
        break;  // any other byte
      case 2:
        other.resize(at);
        break;
      case 3:
        other.insert(at, 1, char(below(256)));
        break;
    }
    SCOPED_TRACE(fmt::format("{} in {} at byte {}", i % 4, name, at));
    scratch.write(name, other);
    expect_error(Exit::checkpoint, {name == "latest" ? "a" : name}, [&] { load(scratch.folder()); });
    scratch.write(name, text);
    if (HasFailure()) break;
  }
  load(scratch.folder());
}

TEST(Damage, ByAFileOfAnotherSaveOfTheSameLayoutIsDetected) {
  const Scratch one, two;
  save_many(one.folder()), save_many(two.folder());
  for (const char* file : {"a/manifest.json", "a/shard-00000.safetensors", "a/shard-00002.safetensors"}) {
    const std::string kept = one.read(file);
    one.write(file, two.read(file));
    expect_error(Exit::checkpoint, {"shard-0000", "belongs to another checkpoint"},
                 [&] { load(one.folder()); });
    one.write(file, kept);
  }
  load(one.folder());
}

}  // namespace
}  // namespace cleave::testing
