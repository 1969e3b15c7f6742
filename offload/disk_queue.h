// Many requests in flight on one open file. Two engines: io_uring, and threads with pread and pwrite for
// kernels or builds without io_uring.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

namespace cleave::offload {

struct DiskRequest {
  std::byte* data;
  int64_t offset, bytes;
};

struct DiskFault {
  DiskRequest request;
  int64_t got;  // bytes before the fault
  int error;    // errno; 0: end of file
};

class DiskQueue {
 public:
  virtual ~DiskQueue() = default;
  // Executes the requests in any order and returns when none is in flight. After a fault, starts no further
  // requests and returns the first fault. One caller at a time.
  virtual std::optional<DiskFault> run(int file, bool write, std::span<const DiskRequest> requests) = 0;
};

std::unique_ptr<DiskQueue> make_thread_queue(int threads);
// Returns null and sets `refusal` if the kernel or this build does not support io_uring.
std::unique_ptr<DiskQueue> make_uring_queue(int depth, std::string& refusal);
// Version of liburing in this build; empty: none.
std::string liburing_version();

}  // namespace cleave::offload
