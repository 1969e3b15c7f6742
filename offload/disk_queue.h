// Many requests in flight against one open file. Two engines: io_uring, and threads with pread and pwrite
// where the kernel or the build has no io_uring.
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
  int error;    // errno; 0: the file ended
};

class DiskQueue {
 public:
  virtual ~DiskQueue() = default;
  // Carries out the requests in any order and returns when none is in flight any more. After a fault nothing
  // new is started; the first fault is returned. For one caller at a time.
  virtual std::optional<DiskFault> run(int file, bool write, std::span<const DiskRequest> requests) = 0;
};

std::unique_ptr<DiskQueue> make_thread_queue(int threads);
// None where the kernel or this build refuses; then `refusal` says why.
std::unique_ptr<DiskQueue> make_uring_queue(int depth, std::string& refusal);
// The liburing that this build has; empty: none.
std::string liburing_version();

}  // namespace cleave::offload
