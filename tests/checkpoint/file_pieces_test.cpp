// Background writes and read-ahead: the same bytes as plain calls.
#include <gtest/gtest.h>

#include <sys/mman.h>
#include <unistd.h>

#include <random>

#include "checkpoint/output_file.h"
#include "checkpoint/read_ahead.h"
#include "tests/scratch.h"

namespace cleave::testing {
namespace {

std::string noise(size_t bytes) {
  std::string out(bytes, '\0');
  std::mt19937_64 random(bytes);
  for (size_t i = 0; i < bytes; i += 8) {
    const uint64_t word = random();
    std::memcpy(out.data() + i, &word, std::min<size_t>(8, bytes - i));
  }
  return out;
}

// A file on disk, which can bypass the page cache, and an anonymous file in memory, which cannot.
struct Files {
  explicit Files(const std::string& bytes = "")
      : on_disk(scratch.write("x", bytes)), memory(memfd_create("x", MFD_CLOEXEC)) {
    in_memory = fmt::format("/proc/self/fd/{}", memory);
    std::ofstream(in_memory, std::ios::binary) << bytes;
  }
  ~Files() { close(memory); }
  Scratch scratch;
  std::string on_disk, in_memory;
  int memory;
};

TEST(OutputFile, HoldsTheWrittenBytesForAllSizes) {
  const int64_t piece = checkpoint::OutputFile::kPiece;
  const Files files;
  for (const std::string& path : {files.on_disk, files.in_memory})
    for (const int64_t bytes : {int64_t{0}, int64_t{1}, piece, 2 * piece - 1, 2 * piece, 2 * piece + 4096,
                                3 * piece + 4097, 9 * piece - 1}) {
      const std::string all = noise(size_t(bytes));
      checkpoint::OutputFile file(path, bytes);
      std::mt19937 random(1);
      for (int64_t at = 0; at < bytes;) {
        const int64_t n = std::min<int64_t>(bytes - at, random() % 3 ? random() % 100000 : 2 * piece);
        file.write(all.data() + at, n);
        at += n;
      }
      file.close();
      std::string held(size_t(bytes), '\0');
      std::ifstream(path, std::ios::binary).read(held.data(), bytes);
      EXPECT_TRUE(held == all && int64_t(std::filesystem::file_size(path)) == bytes) << path << ", " << bytes;
    }
}

TEST(OutputFile, NamesAPathThatCannotBeOpenedAndAFullDisk) {
  const Scratch scratch;
  expect_error(Exit::checkpoint, {"cannot open", "no/such"},
               [&] { checkpoint::OutputFile(scratch.path("no/such"), 1); });
  for (const int64_t bytes : {int64_t{100}, 9 * checkpoint::OutputFile::kPiece}) {
    const std::string some(1 << 20, 'x');
    expect_error(Exit::checkpoint, {"cannot write", "/dev/full", "free space"}, [&] {
      checkpoint::OutputFile file("/dev/full", bytes);
      for (int64_t at = 0; at < bytes; at += int64_t(some.size()))
        file.write(some.data(), std::min<int64_t>(bytes - at, int64_t(some.size())));
      file.close();
    });
  }
}

TEST(ReadAhead, GivesThePiecesInOrder) {
  const std::string a = noise(40'000'001), b = noise(5000);
  const Files as(a), bs(b);
  for (const bool on_disk : {true, false}) {
    const InputFile files[] = {InputFile(on_disk ? as.on_disk : as.in_memory, Exit::data),
                               InputFile(on_disk ? bs.on_disk : bs.in_memory, Exit::data)};
    std::vector<checkpoint::FilePiece> pieces = {
        {&files[0], 40'000'000, 1}, {&files[1], 0, 5000}, {&files[0], 0, 0}};
    std::mt19937 random(3);
    for (int64_t at = 3; at < 39'000'000; at += pieces.back().bytes)  // many adjacent pieces
      pieces.push_back({&files[0], at, random() % 2 ? int64_t(random() % 300) : int64_t(random() % 1000000)});
    pieces.push_back({&files[0], 16, 12'000'000});
    pieces.push_back({&files[1], 4999, 1});
    for (const auto reader : {checkpoint::ReadAhead::Reader::caller, checkpoint::ReadAhead::Reader::thread}) {
      checkpoint::ReadAhead ahead(pieces, reader);
      for (size_t n = 0; n < pieces.size(); ++n) {
        const checkpoint::FilePiece& p = pieces[n];
        const std::span<std::byte> got = ahead.next();
        const std::string& from = p.file == &files[0] ? a : b;
        ASSERT_EQ(int64_t(got.size()), p.bytes);
        ASSERT_EQ(std::memcmp(got.data(), from.data() + p.offset, size_t(p.bytes)), 0) << "piece " << n;
        std::fill(got.begin(), got.end(), std::byte{0});  // the caller may overwrite the bytes
      }
    }
  }
}

TEST(ReadAhead, NamesAFileThatWasTruncatedMeanwhile) {
  const Scratch scratch;
  scratch.write("x", noise(30'000'000));
  const InputFile file(scratch.path("x"), Exit::data);
  std::filesystem::resize_file(scratch.path("x"), 20'000'000);
  std::vector<checkpoint::FilePiece> pieces;
  for (int64_t at = 0; at < 30'000'000; at += 1'000'000) pieces.push_back({&file, at, 1'000'000});
  for (const auto reader : {checkpoint::ReadAhead::Reader::caller, checkpoint::ReadAhead::Reader::thread})
    expect_error(Exit::data, {scratch.path("x"), "ends at byte 20000000", "30000000"}, [&] {
      checkpoint::ReadAhead ahead(pieces, reader);
      for (size_t n = 0; n < pieces.size(); ++n) ahead.next();
    });
}

}  // namespace
}  // namespace cleave::testing
