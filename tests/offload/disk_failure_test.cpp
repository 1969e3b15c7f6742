// Error messages for a missing, full or broken disk.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <functional>

#include "../scratch.h"
#include "offload/disk_file.h"

namespace cleave::offload {
namespace {

using Engine = DiskOptions::Engine;
namespace fs = std::filesystem;

// The only open file of this process in the folder.
int descriptor_in(const fs::path& folder) {
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    if (fs::read_symlink(entry.path(), gone).string().starts_with(folder.string() + "/"))
      return std::stoi(entry.path().filename());
  }
  return -1;
}

// Runs the body in a child process, which may change limits and mounts; its test failures become one failure
// here.
bool in_child(const std::function<void()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    body();
    _exit(testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST(DiskFailure, NamesATruncatedFileWithOffsetAndBytes) {
  for (const Engine engine : {Engine::any, Engine::threads}) {
    const Scratch scratch;
    Memory memory;
    DiskFile file(memory, scratch.folder(), "the optimizer state of rank 3", {{Category::master, 1 << 20}},
                  {8192, 4, 4, engine});
    ASSERT_EQ(ftruncate(descriptor_in(scratch.folder()), 40960), 0);
    std::vector<std::byte> to(1 << 20);
    Stream stream(Stream::Mode::worker);
    file.read(Tensor(to.data(), DType::uint8, {1 << 20}), 0, stream);
    expect_error(Exit::training,
                 {"the optimizer state of rank 3", scratch.folder().string(), "incomplete (expected",
                  "shorter", "at byte", "nvme_path"},
                 [&] { stream.synchronize(); });
  }
}

TEST(DiskFailure, QuotesTheErrorOfADisk) {
  for (const Engine engine : {Engine::any, Engine::threads}) {
    const Scratch scratch;
    Memory memory;
    DiskFile file(memory, scratch.folder(), "state", {{Category::master, 65536}}, {8192, 4, 4, engine});
    const int read_only = open(scratch.write("other", "").c_str(), O_RDONLY);
    ASSERT_GE(dup2(read_only, descriptor_in(scratch.folder())), 0);
    close(read_only);
    std::vector<std::byte> from(65536);
    Stream stream;
    expect_error(Exit::training, {"writing at byte", "0 written", "Bad file descriptor"},
                 [&] { file.write(Tensor(from.data(), DType::uint8, {65536}), 0, stream); });
  }
}

TEST(DiskFailure, RejectsAFileLargerThanTheDiskBeforeTrainingWithBothSizes) {
  const Scratch scratch;
  Memory memory;
  const int64_t available = disk_space(scratch.folder(), "nvme_path").available;
  expect_error(
      Exit::memory, {fmt::format("{} bytes", int64_t{1} << 60), "available", "larger disk", "here.path"},
      [&] {
        DiskFile(memory, scratch.folder(), "state", {{Category::master, int64_t{1} << 60}}, {}, "here.path");
      });
  EXPECT_GT(available, 0);
  EXPECT_EQ(memory.live().total(MemoryKind::disk), 0);
  EXPECT_TRUE(fs::is_empty(scratch.folder()));
}

TEST(DiskFailure, ReportsAFileSizeLimitAsAnErrorInsteadOfASignal) {
  const Scratch scratch;
  EXPECT_TRUE(in_child([&] {
    const rlimit small{1 << 16, 1 << 16};
    setrlimit(RLIMIT_FSIZE, &small);
    Memory memory;
    EXPECT_NO_THROW(DiskFile(memory, scratch.folder(), "state", {{Category::master, 1 << 16}}));
    for (const int64_t bytes : {(1 << 16) + 1, 1 << 20})
      expect_error(Exit::memory, {"ulimit -f", "65536"}, [&] {
        DiskFile(memory, scratch.folder(), "state", {{Category::master, bytes}});
      });
  }));
}

TEST(DiskFailure, NamesUnusableFoldersWithTheirKey) {
  const Scratch scratch;
  Memory memory;
  auto make = [&](const std::string& folder) {
    return [&memory, folder] {
      DiskFile(memory, folder, "state", {{Category::master, 1}}, {}, "x.nvme_path");
    };
  };
  expect_error(Exit::usage, {"x.nvme_path", "/nowhere", "No such file"}, make(scratch.path("nowhere")));
  expect_error(Exit::usage, {"x.nvme_path", "file", "Not a directory"}, make(scratch.write("file", "x")));
  expect_error(Exit::usage, {"x.nvme_path", "not a folder"},
               [&] { disk_space(scratch.path("file"), "x.nvme_path"); });
}

// Blocks io_uring and O_DIRECT for this process from now on.
void refuse_io_uring_and_direct_files() {
  constexpr uint16_t kLoad = BPF_LD | BPF_W | BPF_ABS, kEqual = BPF_JMP | BPF_JEQ | BPF_K;
  sock_filter filter[] = {
      BPF_STMT(kLoad, offsetof(seccomp_data, nr)),
      BPF_JUMP(kEqual, __NR_io_uring_setup, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_JUMP(kEqual, __NR_openat, 0, 3),
      BPF_STMT(kLoad, offsetof(seccomp_data, args[2])),
      BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, O_DIRECT, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EINVAL),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{std::size(filter), filter};
  ASSERT_EQ(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
  ASSERT_EQ(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
}

TEST(DiskFailure, FallsBackToThreadsAndThePageCacheAndSaysSoOnce) {
  const Scratch scratch;
  EXPECT_TRUE(in_child([&] {
    refuse_io_uring_and_direct_files();
    testing::internal::CaptureStderr();
    for (int i = 0; i < 2; ++i) {
      Memory memory;
      DiskFile file(memory, scratch.folder(), "state", {{Category::master, 50'000}}, {4096, 4, 3});
      EXPECT_EQ(file.engine(), "threads, 3 x 4096 B in flight, page cache");
      std::vector<std::byte> bytes(50'000, std::byte{5}), back(50'000);
      Stream stream;
      file.write(Tensor(bytes.data(), DType::uint8, {50'000}), 0, stream);
      file.read(Tensor(back.data(), DType::uint8, {50'000}), 0, stream);
      EXPECT_EQ(bytes, back);
    }
    const std::string said = testing::internal::GetCapturedStderr();
    EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 2) << said;
    EXPECT_NE(said.find("no io_uring here"), std::string::npos) << said;
    EXPECT_NE(said.find("has no O_DIRECT"), std::string::npos) << said;
  }));
  EXPECT_TRUE(fs::is_empty(scratch.folder()));
}

TEST(DiskFailure, RejectsSmallAndReadOnlyFileSystems) {
  const Scratch scratch;
  if (!in_child([] { _exit(unshare(CLONE_NEWNS) == 0 ? 0 : 1); })) GTEST_SKIP() << "needs to mount";
  EXPECT_TRUE(in_child([&] {
    ASSERT_EQ(unshare(CLONE_NEWNS), 0);
    ASSERT_EQ(mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr), 0);
    ASSERT_EQ(mount("tmpfs", scratch.folder().c_str(), "tmpfs", 0, "size=1m"), 0);
    Memory memory;
    expect_error(Exit::memory, {"2097152 bytes", "1048576 bytes", "No space left"}, [&] {
      DiskFile(memory, scratch.folder(), "state", {{Category::master, 2 << 20}});
    });
    DiskFile fits(memory, scratch.folder(), "state", {{Category::master, 1 << 19}});
    std::vector<std::byte> bytes(1 << 19, std::byte{5}), back(1 << 19);
    Stream stream;
    fits.write(Tensor(bytes.data(), DType::uint8, {1 << 19}), 0, stream);
    fits.read(Tensor(back.data(), DType::uint8, {1 << 19}), 0, stream);
    EXPECT_EQ(bytes, back);
    ASSERT_EQ(mount("tmpfs", scratch.folder().c_str(), "tmpfs", MS_RDONLY, ""), 0);
    expect_error(Exit::usage, {"nvme_path", "Read-only file system"},
                 [&] { disk_space(scratch.folder(), "nvme_path"); });
  }));
}

}  // namespace
}  // namespace cleave::offload
