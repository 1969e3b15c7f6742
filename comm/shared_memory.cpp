#include "comm/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

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

SharedMemory SharedMemory::create(size_t bytes) {
  SharedMemory memory;
  memory.bytes_ = bytes;
  memory.fd_ = memfd_create("cleave", MFD_CLOEXEC);
  require(memory.fd_ >= 0, Exit::memory,
          "cannot create shared memory for the ranks of this host: memfd_create: {}", std::strerror(errno));
  const bool sized = ftruncate(memory.fd_, off_t(bytes)) == 0;
  require(sized, Exit::memory, "cannot size {} bytes of shared memory: {}", bytes, std::strerror(errno));
  memory.map();
  return memory;
}

SharedMemory SharedMemory::open(int pid, int fd, size_t bytes) {
  const std::string path = fmt::format("/proc/{}/fd/{}", pid, fd);
  SharedMemory memory;
  memory.bytes_ = bytes;
  memory.fd_ = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  require(memory.fd_ >= 0, Exit::usage,
          "cannot open the shared memory of process {} ({}: {}). Ranks of one host must run as one user, "
          "with /proc "
          "mounted and in one pid namespace; choose the gloo transport otherwise",
          pid, path, std::strerror(errno));
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
