// Memory that ranks of one host share: an anonymous file that has no name, so that nothing can be left behind
// by a process that is killed, and that does not count against the size of /dev/shm.
#pragma once
#include <cstddef>
#include <string>

namespace cleave::comm {

class SharedMemory {
 public:
  SharedMemory() = default;
  SharedMemory(SharedMemory&& other) noexcept { *this = std::move(other); }
  SharedMemory& operator=(SharedMemory&& other) noexcept;
  ~SharedMemory();

  // New zero-filled memory; pages are taken when they are first written.
  static SharedMemory create(size_t bytes);
  // The memory of this size that process `pid` of the same user made and knows as `fd`. Error(usage) names
  // what forbids it, Error(internal) what else the descriptor is.
  static SharedMemory open(int pid, int fd, size_t bytes);

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  int fd() const { return fd_; }
  void close_fd();  // once everybody has opened it

 private:
  void map();

  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
  int fd_ = -1;
};

}  // namespace cleave::comm
