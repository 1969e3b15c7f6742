#include "comm/shm/shared_memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "comm/rendezvous/socket.h"
#include "core/error.h"

namespace cleave::comm {

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(fd_, other.fd_);
  return *this;
}

SharedMemory::~SharedMemory() {
  if (data_) munmap(data_, bytes_);
  close_fd();
}

namespace {

constexpr const char* kName = "cleave";
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;  // makes the size immutable

int new_memory() {
  constexpr unsigned kNoExec = 0x8;  // MFD_NOEXEC_SEAL of Linux 6.3
  constexpr unsigned kFlags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  const int fd = memfd_create(kName, kFlags | kNoExec);
  return fd < 0 && errno == EINVAL ? memfd_create(kName, kFlags) : fd;
}

// Reason why a descriptor, opened with O_PATH, is not a rank's memory of that size; null if it is.
const char* problem_of(int path, size_t bytes) {
  struct stat file {};
  if (fstat(path, &file) != 0 || !S_ISREG(file.st_mode)) return "not a memory file";
  char target[64] = {};
  const ssize_t n = readlink(fmt::format("/proc/self/fd/{}", path).c_str(), target, sizeof(target));
  if (std::string_view(target, size_t(std::max<ssize_t>(n, 0))) != fmt::format("/memfd:{} (deleted)", kName))
    return "not created by a rank";
  return file.st_size == off_t(bytes) ? nullptr : "of another size";
}

}  // namespace

SharedMemory SharedMemory::create(size_t bytes) {
  SharedMemory memory;
  memory.bytes_ = bytes;
  memory.fd_ = new_memory();
  require(memory.fd_ >= 0, Exit::memory,
          "cannot create shared memory for the ranks of this host: memfd_create: {}", std::strerror(errno));
  const bool sized = ftruncate(memory.fd_, off_t(bytes)) == 0;
  require(sized, Exit::memory, "cannot size {} bytes of shared memory: {}", bytes, std::strerror(errno));
  const bool sealed = fcntl(memory.fd_, F_ADD_SEALS, kSeals) == 0;
  require(sealed, Exit::memory, "cannot seal the size of shared memory: {}", std::strerror(errno));
  memory.map();
  return memory;
}

SharedMemory SharedMemory::open(int pid, int fd, size_t bytes) {
  const std::string path = fmt::format("/proc/{}/fd/{}", pid, fd);
  SharedMemory memory;
  memory.bytes_ = bytes;
  // Checks before it opens: the descriptor that a peer names may be a device, a pipe, or another file of this
  // user.
  const Socket found(::open(path.c_str(), O_PATH | O_CLOEXEC));
  const char* problem = found ? problem_of(found.fd(), bytes) : nullptr;
  require(!problem, Exit::internal, "shared memory of process {}: descriptor {} is {}; restart the job", pid,
          fd, problem ? problem : "");
  if (found) memory.fd_ = ::open(fmt::format("/proc/self/fd/{}", found.fd()).c_str(), O_RDWR | O_CLOEXEC);
  require(memory.fd_ >= 0, Exit::usage,
          "cannot open the shared memory of process {} ({}: {}). Ranks on one host must run as one user, "
          "with /proc mounted and in one PID namespace; otherwise use the gloo transport",
          pid, path, std::strerror(errno));
  const int seals = fcntl(memory.fd_, F_GET_SEALS);
  require(seals >= 0 && (seals & kSeals) == kSeals, Exit::internal,
          "shared memory of process {}: the size of descriptor {} can change; restart the job", pid, fd);
  memory.map();
  return memory;
}

void SharedMemory::map() {
  void* p = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  require(p != MAP_FAILED, Exit::memory, "cannot map {} bytes of shared memory: {}", bytes_,
          std::strerror(errno));
  data_ = static_cast<std::byte*>(p);
}

void SharedMemory::close_fd() {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

}  // namespace cleave::comm
