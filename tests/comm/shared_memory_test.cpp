// Descriptors of another process that are accepted as shared memory.
#include "comm/shm/shared_memory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <string>

#include "comm/from_peer.h"
#include "comm/rendezvous/socket.h"
#include "tests/comm/collectives.h"

namespace cleave::comm {
namespace {

using test::error_of;
using test::has;

constexpr size_t kBytes = 8192;

Socket memory_named(const char* name, size_t bytes, int seals) {
  Socket memory(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  CHECK(ftruncate(memory.fd(), off_t(bytes)) == 0 && fcntl(memory.fd(), F_ADD_SEALS, seals) == 0, "memfd");
  return memory;
}

TEST(SharedMemory, IsSharedAndHasAFixedSize) {
  const SharedMemory made = SharedMemory::create(kBytes);
  SharedMemory opened = SharedMemory::open(getpid(), made.fd(), kBytes);
  made.data()[kBytes - 1] = std::byte{7};
  EXPECT_EQ(opened.data()[kBytes - 1], std::byte{7});
  EXPECT_NE(ftruncate(made.fd(), 0), 0);
  EXPECT_NE(ftruncate(made.fd(), 2 * kBytes), 0);
  const Socket plain(memfd_create("probe", MFD_CLOEXEC | 0x8));  // MFD_NOEXEC_SEAL, of Linux 6.3
  struct stat file {};
  ASSERT_EQ(fstat(made.fd(), &file), 0);
  EXPECT_TRUE(!plain || (file.st_mode & 0111) == 0);
}

TEST(SharedMemory, RejectsOtherDescriptorsOfAPeer) {
  constexpr int kSize = F_SEAL_SHRINK | F_SEAL_GROW, kAll = kSize | F_SEAL_SEAL;
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::tmpfile(), std::fclose);
  ASSERT_EQ(ftruncate(fileno(file.get()), kBytes), 0);
  int pipe_ends[2] = {};
  ASSERT_EQ(pipe2(pipe_ends, O_CLOEXEC), 0);
  const Socket reads(pipe_ends[0]), writes(pipe_ends[1]), device(::open("/dev/zero", O_RDWR | O_CLOEXEC));
  const Socket other = memory_named("other", kBytes, kAll), open_size = memory_named("cleave", kBytes, 0),
               small = memory_named("cleave", kBytes / 2, kAll),
               open_seals = memory_named("cleave", kBytes, kSize);
  const auto problem = [](int fd) {
    return error_of([&] { SharedMemory::open(getpid(), fd, kBytes); }, Exit::internal);
  };
  EXPECT_TRUE(has(problem(fileno(file.get())), "not created by a rank"));
  EXPECT_TRUE(has(problem(reads.fd()), "not a memory file"));
  EXPECT_TRUE(has(problem(writes.fd()), "not a memory file"));
  EXPECT_TRUE(has(problem(device.fd()), "not a memory file"));
  EXPECT_TRUE(has(problem(other.fd()), "not created by a rank"));
  EXPECT_TRUE(has(problem(small.fd()), "of another size"));
  EXPECT_TRUE(has(problem(open_size.fd()), "can change"));
  EXPECT_TRUE(has(problem(open_seals.fd()), "can change"));
  EXPECT_TRUE(has(error_of([] { SharedMemory::open(getpid(), -1, kBytes); }, Exit::usage), "/fd/-1"));
}

TEST(FromPeer, LimitsATextToItsField) {
  const char whole[4] = {'a', 'b', 'c', 'd'}, part[4] = {'a', 0, 'c', 'd'};
  EXPECT_EQ(text_from_peer(whole), "abcd");
  EXPECT_EQ(text_from_peer(part), "a");
  EXPECT_EQ(length_from_peer(0, "text"), 0u);
  for (const int64_t wrong : {int64_t{-1}, kLongestText + 1, INT64_MIN})
    EXPECT_TRUE(has(error_of([&] { length_from_peer(wrong, "text"); }, Exit::internal), "text: ")) << wrong;
}

}  // namespace
}  // namespace cleave::comm
