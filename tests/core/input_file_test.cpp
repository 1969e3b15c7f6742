#include "core/input_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>

#include "tests/scratch.h"

namespace cleave {
namespace {

TEST(InputFile, ReadsAnyBytesAndTheWholeText) {
  const Scratch scratch;
  const InputFile file(scratch.write("a", "0123456789"), Exit::data);
  std::byte some[3];
  file.read(4, some);
  EXPECT_EQ(int(some[2]), '6');
  EXPECT_EQ(file.text(), "0123456789");
  EXPECT_EQ(InputFile(scratch.write("empty", ""), Exit::data).text(), "");
  expect_error(Exit::usage, {"has 10 bytes", "at most 9"},
               [&] { InputFile(scratch.path("a"), Exit::usage).text(9); });
}

TEST(InputFile, RejectsPipesDevicesAndFoldersWithTheCallersExitCodeWithoutWaiting) {
  const Scratch scratch;
  const std::string pipe = scratch.path("pipe");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  expect_error(Exit::checkpoint, {pipe, "not a regular file"}, [&] { InputFile(pipe, Exit::checkpoint); });
  expect_error(Exit::usage, {"/dev/zero", "not a regular file"}, [] { InputFile("/dev/zero", Exit::usage); });
  expect_error(Exit::data, {"is a directory; name one file in it"}, [&] { InputFile(scratch.path(""), Exit::data); });
  expect_error(Exit::data, {"none", "No such file"}, [&] { InputFile(scratch.path("none"), Exit::data); });
}

TEST(InputFile, DetectsModification) {
  const Scratch scratch;
  const std::string path = scratch.write("a", "before");
  const InputFile file(path, Exit::data);
  file.require_unchanged();
  scratch.write("a", "behind");  // the same size
  std::filesystem::last_write_time(path,
                                   std::filesystem::file_time_type::clock::now() + std::chrono::hours(1));
  expect_error(Exit::data, {path, "changed since"}, [&] { file.require_unchanged(); });
}

TEST(InputFile, IgnoresANewTimeIfTheNotedContentsMatch) {
  const Scratch scratch;
  using Clock = std::filesystem::file_time_type::clock;
  for (const size_t size : {size_t{0}, size_t{6}, size_t{1} << 20, size_t{5} << 20}) {
    const std::string path = scratch.write("a", std::string(size, 'a'));
    InputFile file(path, Exit::data);
    file.note_contents();
    for (const int hours : {1, 2}) {
      std::filesystem::last_write_time(path, Clock::now() + std::chrono::hours(hours));
      file.require_unchanged();
    }
    if (size == 0) continue;
    scratch.write("a", std::string(size - 1, 'a') + "b");
    std::filesystem::last_write_time(path, Clock::now() + std::chrono::hours(3));
    expect_error(Exit::data, {path, "changed since"}, [&] { file.require_unchanged(); });
  }
}

}  // namespace
}  // namespace cleave
