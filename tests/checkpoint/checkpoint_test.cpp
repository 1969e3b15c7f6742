// Saves and reads records without an engine.
#include "checkpoint/checkpoint.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "checkpoint/digest.h"
#include "tests/checkpoint/hand_made.h"
#include "tests/scratch.h"

namespace cleave::testing {
namespace {
namespace fs = std::filesystem;

// Each of `ranks` has columns of w and a range of b; the first has all of c.
std::vector<checkpoint::Record> records_of(int rank, int ranks) {
  const Range mine = part(6, ranks, rank);
  std::vector<checkpoint::Record> out = {given("master", "w", {4, 6}, columns(4, 6, mine.begin, mine.end)),
                                         given("exp_avg", "w", {4, 6}, {part(24, ranks, rank)}),
                                         given("master", "bias", {5}, {part(5, ranks, rank)})};
  if (rank == 0) out.push_back(given("master", "scalar", {}, {{0, 1}}));
  return out;
}

void save(const fs::path& dir, const std::string& tag, int ranks) {
  comm::run_ranks(ranks, [&](comm::Communicator& world) {
    checkpoint::save_checkpoint(dir, tag, records_of(world.rank(), ranks), R"({"step": 7})", world);
  });
}

std::string shard(int rank) { return fmt::format("shard-{:05}.safetensors", rank); }

void flip_bit(const fs::path& path, int64_t from_end) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(-from_end, std::ios::end);
  const char byte = char(file.get() ^ 1);
  file.seekp(-from_end, std::ios::end);
  file.put(byte);
}

TEST(Checkpoint, CreatesFilesWithTheModeOfTheProcess) {
  for (const mode_t mask : {0002, 0027}) {
    const Scratch scratch;
    const mode_t before = ::umask(mask);
    save(scratch.folder(), "a", 2);
    ::umask(before);
    int files = 0;
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(scratch.folder()))
      if (entry.is_regular_file()) {
        EXPECT_EQ(mode_t(entry.status().permissions()), 0666 & ~mask) << entry.path();
        ++files;
      }
    EXPECT_EQ(files, 4);  // one per rank, the manifest, and latest
  }
}

TEST(Checkpoint, LoadsEveryElementInAnyLayout) {
  for (int ranks : {1, 2, 3}) {
    const Scratch scratch;
    save(scratch.folder(), "a", ranks);
    const checkpoint::CheckpointReader reader(scratch.folder(), "latest");
    EXPECT_EQ(reader.state(), R"({"step":7})");
    EXPECT_EQ(reader.shape("master", "w"), (std::vector<int64_t>{4, 6}));
    EXPECT_TRUE(reader.shape("exp_avg", "bias").empty());
    EXPECT_EQ(reader.manifest().tensors.size(), 4u);
    EXPECT_EQ(reader.faults(2), std::vector<std::string>());
    for (const checkpoint::Elements& e :
         {checkpoint::Elements{{0, 24}}, checkpoint::Elements{{5, 17}}, checkpoint::Elements{{23, 24}},
          columns(4, 6, 0, 1), columns(4, 6, 2, 5), columns(2, 12, 7, 11),
          checkpoint::Elements{{1, 18}, 2, 5}})
      for (const char* kind : {"master", "exp_avg"})
        EXPECT_EQ(read(reader, kind, "w", {4, 6}, e), expected("w", e)) << kind << ", " << ranks << " ranks";
    EXPECT_EQ(read(reader, "master", "bias", {5}, {{1, 4}}), expected("bias", {{1, 4}}));
    EXPECT_EQ(read(reader, "master", "scalar", {}, {{0, 1}}), expected("scalar", {{0, 1}}));
  }
}

constexpr int64_t kPasses = int64_t{1} << 21;  // elements in memory at a time

TEST(Checkpoint, MovesRecordsLargerThanThePieceBuffer) {
  const int64_t rows = 3, width = kPasses + 5;
  const Scratch scratch;
  comm::run_ranks(2, [&](comm::Communicator& world) {
    const checkpoint::Elements mine =
        world.rank() == 0 ? columns(rows, width, 0, width - 2) : columns(rows, width, width - 2, width);
    checkpoint::save_checkpoint(scratch.folder(), "a", {given("master", "w", {rows, width}, mine)}, "{}",
                                world);
  });
  const checkpoint::CheckpointReader reader(scratch.folder(), "a");
  for (const checkpoint::Elements& e :
       {checkpoint::Elements{{0, rows * width}}, columns(rows, width, width - 9, width - 1)})
    EXPECT_EQ(read(reader, "master", "w", {rows, width}, e), expected("w", e));
}

// The integers follow an odd number of floats, and cross the end of a piece in memory.
TEST(Checkpoint, KeepsIntegersExactlyAmongFloats) {
  const int64_t rows = 3, width = kPasses / 2 + 5;
  const Scratch scratch;
  comm::run_ranks(2, [&](comm::Communicator& world) {
    const bool first = world.rank() == 0;
    checkpoint::save_checkpoint(
        scratch.folder(), "a",
        {given("master", "w", {5}, first ? checkpoint::Elements{{0, 3}} : checkpoint::Elements{{3, 5}}),
         given_counts("n", {rows, width},
                      first ? columns(rows, width, 0, width - 2) : columns(rows, width, width - 2, width))},
        "{}", world);
  });
  const checkpoint::CheckpointReader reader(scratch.folder(), "a");
  EXPECT_EQ(reader.manifest().bytes(), 5 * 4 + rows * width * 8);
  EXPECT_EQ(reader.faults(2), std::vector<std::string>());
  for (const checkpoint::Elements& e :
       {checkpoint::Elements{{0, rows * width}}, columns(rows, width, width - 9, width - 1)}) {
    std::vector<int64_t> want;
    for (const int64_t i : indices_of(e)) want.push_back(count_of(i));
    EXPECT_EQ(read_counts(reader, "n", {rows, width}, e), want);
  }
  EXPECT_EQ(read(reader, "master", "w", {5}, {{0, 5}}), expected("w", {{0, 5}}));
  for (int rank : {0, 1}) {
    const checkpoint::SafetensorsFile file(scratch.folder() / "a" / shard(rank));
    for (const auto& [name, t] : file.tensors())
      EXPECT_EQ(file.offset(name) % size_of(t.dtype), 0) << name << " is not aligned";
  }
  flip_bit(scratch.folder() / "a" / shard(1), 2 * 4 + 1);  // last byte of the counts, before two floats
  const std::vector<std::string> faults = checkpoint::CheckpointReader(scratch.folder(), "a").faults(1);
  ASSERT_EQ(faults.size(), 1u);
  EXPECT_NE(faults[0].find("of layer_state/n["), faults[0].npos) << faults[0];
  expect_error(Exit::checkpoint, {"layer_state of n has the wrong type (got int64, expected fp32"}, [&] {
    read(reader, "layer_state", "n", {rows, width}, {{0, 1}});
  });
}

TEST(Checkpoint, FindsColumnsAcrossTheEndOfAPiece) {
  // The first piece that is read, a window and a block, ends inside the second row's columns.
  const int64_t rows = 3, width = kPasses / 2 + checkpoint::Manifest::kBlock - 9;
  const Scratch scratch;
  comm::run_ranks(1, [&](comm::Communicator& world) {
    checkpoint::save_checkpoint(scratch.folder(), "a",
                                {given("master", "w", {rows, width}, {{0, rows * width}})}, "{}", world);
  });
  const checkpoint::Elements wanted = columns(rows, width, 5, 14);
  EXPECT_EQ(read(checkpoint::CheckpointReader(scratch.folder(), "a"), "master", "w", {rows, width}, wanted),
            expected("w", wanted));
}

TEST(Checkpoint, ReadsManyRecordsAtOnceOrNoneIfOneIsMissing) {
  const int64_t rows = 5, width = kPasses / 2 + 77;
  const Scratch scratch;
  comm::run_ranks(3, [&](comm::Communicator& world) {
    std::vector<checkpoint::Record> mine = {
        given("master", "w", {rows, width}, {part(rows * width, world.size(), world.rank())})};
    for (int n = 0; n < 20; ++n)
      mine.push_back(given("master", fmt::format("bias{}", n), {600}, {part(600, 3, world.rank())}));
    checkpoint::save_checkpoint(scratch.folder(), "a", mine, "{}", world);
  });
  const checkpoint::CheckpointReader reader(scratch.folder(), "a");
  std::vector<checkpoint::Record> records;
  std::vector<std::vector<float>> got, want;
  auto ask = [&](const std::string& tensor, const Shape2& shape, const checkpoint::Elements& e) {
    want.push_back(expected(tensor, e));
    got.emplace_back(want.back().size(), -1.0f);
    records.push_back({"master", tensor, shape, e, {}, [&got, at = got.size() - 1](Range r, Tensor from) {
                         std::copy_n(from.as<float>(), r.size(), got[at].begin() + r.begin);
                       }});
  };
  for (const checkpoint::Elements& e : {checkpoint::Elements{{3, rows * width - 1}},
                                        columns(rows, width, 5, width / 2), checkpoint::Elements{{0, 1}}})
    ask("w", {rows, width}, e);
  for (int n = 0; n < 20; ++n) ask(fmt::format("bias{}", n), {600}, {{n, 600 - n}});
  reader.read(records);
  EXPECT_EQ(got, want);

  records.push_back(given("master", "other", {600}, {{0, 600}}));
  for (std::vector<float>& g : got) std::fill(g.begin(), g.end(), -1.0f);
  expect_error(Exit::checkpoint, {": master of other"}, [&] { reader.read(records); });
  for (const std::vector<float>& g : got) EXPECT_EQ(g, std::vector<float>(g.size(), -1.0f));
}

TEST(Checkpoint, IsNotSavedIfAnElementIsMissingOrDuplicate) {
  const Scratch scratch;
  save(scratch.folder(), "before", 2);
  const auto refused = [&](std::vector<checkpoint::Elements> parts,
                           std::initializer_list<std::string_view> words) {
    comm::run_ranks(2, [&](comm::Communicator& world) {
      const checkpoint::Elements mine = parts[size_t(world.rank())];
      expect_error(Exit::checkpoint, words, [&] {
        checkpoint::save_checkpoint(scratch.folder(), "after", {given("master", "w", {12}, mine)}, "{}",
                                    world);
      });
    });
    EXPECT_EQ(checkpoint::latest_checkpoint(scratch.folder()), "before");
    EXPECT_FALSE(fs::exists(scratch.folder() / "after"));
    EXPECT_FALSE(fs::exists(scratch.folder() / ".tmp.after"));
  };
  refused({{{0, 6}}, {{7, 12}}}, {"after: not saved, earlier checkpoints are unchanged:",
                                  "11 of 12 elements of master/w", "element 6 not at all"});
  refused({{{0, 7}}, {{6, 12}}},
          {"after: not saved, earlier checkpoints are unchanged:", "13 of 12", "element 6 more than once"});
  refused({{{0, 6}}, {{0, 6}}}, {"12 of 12", "element 0 more than once"});
}

TEST(Checkpoint, NamesTheFolderThatCannotBeCreated) {
  const Scratch scratch;
  const fs::path file = scratch.folder() / "file";
  std::ofstream(file) << "text";
  const std::string said = file.string() + ": cannot be written (Not a directory, expected a folder)";
  comm::run_ranks(2, [&](comm::Communicator& world) {
    const int64_t begin = 6 * world.rank();
    expect_error(Exit::checkpoint, {said, "choose a folder"}, [&] {
      checkpoint::save_checkpoint(file, "after", {given("master", "w", {12}, {{begin, begin + 6}})}, "{}",
                                  world);
    });
  });
}

TEST(Checkpoint, IsNotSavedByAnyRankIfOneCannotReadItsElements) {
  const Scratch scratch;
  comm::run_ranks(2, [&](comm::Communicator& world) {
    checkpoint::Record mine = given("master", "w", {12}, {part(12, 2, world.rank())});
    if (world.rank() == 1) mine.read = [](Range, Tensor) { fail(Exit::training, "the disk is gone"); };
    expect_error(Exit::checkpoint, {"the disk is gone", "not saved, earlier checkpoints are unchanged"},
                 [&] { checkpoint::save_checkpoint(scratch.folder(), "a", {mine}, "{}", world); });
  });
  EXPECT_TRUE(checkpoint::list_checkpoints(scratch.folder()).empty());
}

TEST(Checkpoint, IsReplacedByASaveOfTheSameNameAndLatestIsTheLastSaved) {
  const Scratch scratch;
  save(scratch.folder(), "a", 3);
  save(scratch.folder(), "b", 1);
  save(scratch.folder(), "a", 2);
  EXPECT_EQ(checkpoint::latest_checkpoint(scratch.folder()), "a");
  EXPECT_EQ(checkpoint::checkpoint_folders(scratch.folder()), (std::vector<std::string>{"a", "b"}));
  EXPECT_FALSE(fs::exists(scratch.folder() / "a" / shard(2)));
  EXPECT_EQ(checkpoint::CheckpointReader(scratch.folder(), "a").faults(1), std::vector<std::string>());
}

TEST(Checkpoint, NamesACheckpointFolderOneLevelBelowOrAbove) {
  const Scratch scratch;
  save(scratch.folder() / "run" / "checkpoints", "a", 1);
  expect_error(Exit::checkpoint,
               {"the file 'latest'", "its folder checkpoints has one: give", "run/checkpoints"},
               [&] { checkpoint::latest_checkpoint(scratch.folder() / "run"); });
  expect_error(Exit::checkpoint, {"is a checkpoint itself: give the folder above it, and --tag a"},
               [&] { checkpoint::latest_checkpoint(scratch.folder() / "run" / "checkpoints" / "a"); });
}

TEST(Checkpoint, ListsExistingCheckpointsIfTheRequestedOneIsMissing) {
  const Scratch scratch;
  expect_error(Exit::checkpoint, {"the file 'latest'"},
               [&] { checkpoint::CheckpointReader(scratch.folder(), "latest"); });
  expect_error(Exit::checkpoint, {"does not exist", "none"},
               [&] { checkpoint::CheckpointReader(scratch.folder(), "b"); });
  save(scratch.folder(), "a", 1);
  expect_error(Exit::checkpoint, {"b: does not exist", ": a"},
               [&] { checkpoint::CheckpointReader(scratch.folder(), "b"); });
  for (const char* name : {"../a", "", ".", "..", "a/b", "a\n"})
    expect_error(Exit::checkpoint, {"is not the name of"},
                 [&] { checkpoint::CheckpointReader(scratch.folder(), name); });
}

TEST(Checkpoint, NamesATensorThatIsMissingOrHasAnotherShape) {
  const Scratch scratch;
  save(scratch.folder(), "a", 2);
  const checkpoint::CheckpointReader reader(scratch.folder(), "a");
  const auto wants = [&](const char* kind, const char* tensor, std::vector<int64_t> shape, Range range) {
    read(reader, kind, tensor, shape, {range});
  };
  expect_error(Exit::checkpoint, {"master of gate is missing", "another model"}, [&] {
    wants("master", "gate", {4}, {0, 4});
  });
  expect_error(Exit::checkpoint, {"momentum of w is missing"}, [&] {
    wants("momentum", "w", {4, 6}, {0, 4});
  });
  expect_error(Exit::checkpoint, {"master of w has the wrong shape (got [4, 6], expected [6, 4])"}, [&] {
    wants("master", "w", {6, 4}, {0, 4});
  });
  expect_error(Exit::checkpoint, {"], expected [24])"}, [&] { wants("master", "w", {24}, {0, 24}); });
  expect_error(Exit::checkpoint, {"3 of 4 elements of master bias)"}, [&] {
    wants("master", "bias", {5}, {2, 6});
  });
}

TEST(Checkpoint, NamesTheTensorWithAFlippedBitAndReadsTheOthers) {
  const Scratch scratch;
  save(scratch.folder(), "a", 2);
  flip_bit(scratch.folder() / "a" / shard(1), 1);  // the last element of rank 1's shard: its part of bias
  const checkpoint::CheckpointReader reader(scratch.folder(), "a");
  reader.check_files();
  const checkpoint::Elements rest{{0, 3}}, all{{0, 5}}, w{{0, 24}};
  EXPECT_EQ(read(reader, "master", "w", {4, 6}, w), expected("w", w));
  EXPECT_EQ(read(reader, "master", "bias", {5}, rest), expected("bias", rest));
  const auto words = {std::string_view("master/bias[3:5]"), std::string_view("checksum"),
                      std::string_view("shard-00001")};
  expect_error(Exit::checkpoint, words, [&] { read(reader, "master", "bias", {5}, all); });
  const std::vector<std::string> faults = checkpoint::CheckpointReader(scratch.folder(), "a").faults(2);
  ASSERT_EQ(faults.size(), 1u);
  for (const std::string_view word : words) EXPECT_NE(faults[0].find(word), std::string::npos) << faults[0];
}

// Reading a slice reads only its blocks: a fault in another block is not detected; one in its own block is
// named by its bytes.
TEST(Checkpoint, ReadsOnlyTheBlocksOfASlice) {
  const Scratch scratch;
  constexpr int64_t kBlock = cleave::checkpoint::Manifest::kBlock, kNumel = 3 * kBlock + 5;
  comm::run_ranks(1, [&](comm::Communicator& world) {
    checkpoint::save_checkpoint(scratch.folder(), "a", {given("master", "w", {kNumel}, {{0, kNumel}})}, "{}",
                                world);
  });
  const fs::path file = scratch.folder() / "a" / shard(0);
  flip_bit(file, 4 * (kNumel - kBlock - 7));  // in element kBlock + 7
  const checkpoint::CheckpointReader reader(scratch.folder(), "a");
  for (const Range range :
       {Range{0, kBlock}, Range{2 * kBlock, kNumel}, Range{kBlock - 3, kBlock}, Range{kNumel - 1, kNumel}})
    EXPECT_EQ(read(reader, "master", "w", {kNumel}, {range}), expected("w", {range}));
  const auto data = int64_t(fs::file_size(file)) - 4 * kNumel;
  const std::string bytes = fmt::format("bytes {} to {}", data + 4 * kBlock, data + 8 * kBlock);
  for (const Range range :
       {Range{kBlock - 1, kBlock + 1}, Range{2 * kBlock - 1, 2 * kBlock}, Range{0, kNumel}})
    expect_error(Exit::checkpoint, {"shard-00000", bytes, "master/w"},
                 [&] { read(reader, "master", "w", {kNumel}, {range}); });
  ASSERT_EQ(reader.faults(1).size(), 1u);
  EXPECT_NE(reader.faults(1)[0].find(bytes), std::string::npos);
}

TEST(Checkpoint, HasTheSameDigestInEveryLayoutAndAnotherForOtherValues) {
  const Scratch scratch;
  std::map<std::string, std::string> first;
  for (int ranks : {1, 2, 3}) {
    save(scratch.folder(), "a", ranks);
    const auto now = checkpoint::digests(checkpoint::CheckpointReader(scratch.folder(), "a"), ranks);
    if (first.empty()) first = now;
    EXPECT_EQ(now, first) << ranks;
  }
  EXPECT_EQ(first.size(), 2u);  // master and exp_avg
  comm::run_ranks(1, [&](comm::Communicator& world) {
    std::vector<checkpoint::Record> records = records_of(0, 1);
    const auto read = records[2].read;
    records[2].read = [read](Range r, Tensor to) {
      read(r, to);
      if (r.end == 5) to.as<float>()[4 - r.begin] += 1e-3f;
    };
    checkpoint::save_checkpoint(scratch.folder(), "b", records, "{}", world);
  });
  const auto other = checkpoint::digests(checkpoint::CheckpointReader(scratch.folder(), "b"), 1);
  EXPECT_NE(other.at("master"), first.at("master"));
  EXPECT_EQ(other.at("exp_avg"), first.at("exp_avg"));
  // Rounded to bf16, with 8 bits, 6.501 and 6.5 are the same number.
  EXPECT_EQ(checkpoint::digests(checkpoint::CheckpointReader(scratch.folder(), "a"), 1, DType::bf16),
            checkpoint::digests(checkpoint::CheckpointReader(scratch.folder(), "b"), 1, DType::bf16));
}

TEST(Checkpoint, DetectsSwappedShards) {
  const Scratch scratch;
  save(scratch.folder(), "a", 2);
  const fs::path a = scratch.folder() / "a";
  fs::rename(a / shard(0), a / "kept");
  fs::rename(a / shard(1), a / shard(0));
  fs::rename(a / "kept", a / shard(1));
  const checkpoint::CheckpointReader reader(scratch.folder(), "a");
  expect_error(Exit::checkpoint, {"shard-0000", "belongs to another checkpoint"},
               [&] { reader.check_files(); });
  EXPECT_EQ(reader.faults(1).size(), 2u);
  expect_error(Exit::checkpoint, {"damaged"}, [&] { read(reader, "master", "w", {4, 6}, {{0, 24}}); });
}

TEST(Checkpoint, DetectsAShardWithOtherTensorSizes) {
  const Scratch scratch;
  save(scratch.folder(), "a", 2);
  std::vector<float> zeros(24);
  std::vector<checkpoint::NamedTensor> shorter;  // the second rank's, each one element shorter
  for (const char* name : {"master/w[3:24:3/6]", "exp_avg/w[12:24]", "master/bias[3:5]"}) {
    const int64_t n = std::string(name) == "master/bias[3:5]" ? 1 : 11;
    shorter.push_back({name, {n}, Tensor(zeros.data(), DType::fp32, {n}, MemoryKind::host)});
  }
  checkpoint::write_safetensors(scratch.folder() / "a" / shard(1), shorter);
  const checkpoint::CheckpointReader reader(scratch.folder(), "a");
  expect_error(Exit::checkpoint, {"shard-00001", "bytes, expected"}, [&] { reader.check_files(); });
  expect_error(Exit::checkpoint, {"shard-00001", "damaged"}, [&] {
    read(reader, "master", "bias", {5}, {{0, 5}});
  });
}

TEST(Checkpoint, DetectsATruncatedOrMissingShard) {
  const Scratch scratch;
  save(scratch.folder(), "a", 2);
  const fs::path file = scratch.folder() / "a" / shard(1);
  for (auto size = int64_t(fs::file_size(file)) - 1; size >= 0; size -= 7) {
    fs::resize_file(file, uintmax_t(size));
    const checkpoint::CheckpointReader reader(scratch.folder(), "a");
    expect_error(Exit::checkpoint, {"shard-00001", "damaged"}, [&] { reader.check_files(); });
    expect_error(Exit::checkpoint, {"shard-00001"}, [&] { read(reader, "exp_avg", "w", {4, 6}, {{0, 24}}); });
  }
  fs::remove(file);
  expect_error(Exit::checkpoint, {"shard-00001"},
               [&] { checkpoint::CheckpointReader(scratch.folder(), "a").check_files(); });
}

TEST(Checkpoint, NamesAFileInPlaceOfItsFolder) {
  const Scratch scratch;
  const fs::path file = scratch.folder() / "run";
  std::ofstream(file) << "text";
  expect_error(Exit::usage, {file.string(), "is a file", "folder of checkpoints"},
               [&] { checkpoint::checkpoint_folders(file); });
}

}  // namespace
}  // namespace cleave::testing
