// Memory shared by ranks of one host: an anonymous file, so that a killed process leaves nothing and
// /dev/shm's size does not limit it.
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

  // New zero-filled memory; pages are allocated on first write.
  static SharedMemory create(size_t bytes);
  // Opens memory of this size that process `pid` of the same user created as `fd`. Throws Error(usage) with
  // the cause if the system forbids it, and Error(internal) if the descriptor is something else.
  static SharedMemory open(int pid, int fd, size_t bytes);

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  int fd() const { return fd_; }
  void close_fd();  // call after all ranks have opened it

 private:
  void map();

  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
  int fd_ = -1;
};

}  // namespace cleave::comm
