// Files as memory for tensors: reads and writes large blocks without the page cache, with many requests in
// flight.
#pragma once
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "device/memory.h"
#include "device/stream.h"

namespace cleave::offload {

struct DiskOptions {
  int64_t block_bytes = int64_t{1} << 20;  // per request; rounded up to DiskFile::kAlignment
  int queue_depth = 32;                    // requests in flight
  int threads = 8;                         // used without io_uring
  enum class Engine : uint8_t { any, io_uring, threads } engine = Engine::any;
};

class DiskFile {
 public:
  static constexpr int64_t kAlignment = 4096;  // reads and writes are fastest at its multiples

  // Creates a zero-filled, unnamed file in `folder`; the OS frees its space however the process ends.
  // Reserves the space immediately and counts it as disk memory, by category; the sum is `bytes()`. A dry
  // memory only counts. `key` is the configuration key of the folder, for messages. Throws Error(usage) if
  // the file cannot be created, Error(memory) with required and available bytes if it does not fit. Falls
  // back to the page cache if the file system does not support O_DIRECT, and to threads if the kernel has no
  // io_uring; each fallback prints one line to stderr.
  DiskFile(Memory& memory, const std::filesystem::path& folder, std::string name,
           const std::vector<std::pair<Category, int64_t>>& bytes, const DiskOptions& options = {},
           std::string key = "nvme_path");
  ~DiskFile();
  DiskFile(const DiskFile&) = delete;
  DiskFile& operator=(const DiskFile&) = delete;

  // Enqueue the transfer between a host tensor and the file at this byte offset (any alignment) on a CPU
  // stream; a worker stream does it in the background. Reads and writes run concurrently; reads of two
  // streams run one after the other, and so do writes. Only events order overlapping ranges. Failures throw
  // from the task, with file, offset, expected and actual bytes, the system's message and an action:
  // Error(memory) for a full disk, else Error(training).
  void read(Tensor to, int64_t offset, Stream& stream);
  void write(Tensor from, int64_t offset, Stream& stream);

  int64_t bytes() const { return bytes_; }
  // "io_uring, 32 x 1.0 MiB in flight, O_DIRECT"; empty if dry. For messages.
  std::string engine() const;

 private:
  struct Channel;
  struct Handle;
  void move(bool write, std::byte* data, int64_t bytes, int64_t offset);

  std::string name_, key_;
  DiskOptions options_;
  int64_t bytes_ = 0;
  std::vector<Buffer> counted_;
  std::unique_ptr<Handle> file_;  // null: dry
  std::unique_ptr<Channel> reads_, writes_;
};

// Bytes that a user may still write to the file system of `folder`, and an ID of the file system on this
// host. Throws Error(usage) with `key` if the folder does not exist, is not a folder, or is not writable.
struct DiskSpace {
  int64_t available, file_system;
};
DiskSpace disk_space(const std::filesystem::path& folder, const std::string& key);

// Bytes per second. The measurement takes some tenths of a second and uses at most `bytes` in a temporary
// file in `folder`; it compares the read data with the written data. Throws like DiskFile.
struct DiskRates {
  double read, write;
  std::string engine;  // DiskFile::engine()
};
DiskRates measure_disk(const std::filesystem::path& folder, int64_t bytes, const DiskOptions& options,
                       const std::string& key);

}  // namespace cleave::offload
