// A file on disk as memory for tensors: read and written in large blocks past the page cache, many in flight.
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
  int64_t block_bytes = int64_t{1} << 20;  // of one request; rounded up to DiskFile::kAlignment
  int queue_depth = 32;                    // requests in flight
  int threads = 8;                         // that make requests where there is no io_uring
  enum class Engine : uint8_t { any, io_uring, threads } engine = Engine::any;
};

class DiskFile {
 public:
  static constexpr int64_t kAlignment = 4096;  // reads and writes are fastest from multiples of it

  // A zero-filled file without a name in `folder`: however the process ends, the system frees its space. The
  // space is reserved now and counted as disk memory, by category; the sum is `bytes()`. A dry memory counts
  // and touches nothing. `key` is the configuration's key of the folder, for messages.
  // Throws Error(usage) when no file can be made there, Error(memory) with wanted and available bytes when it
  // does not fit. A file system that cannot pass by the page cache (O_DIRECT) is used through it, a kernel
  // without io_uring with threads: both are said on stderr once.
  DiskFile(Memory& memory, const std::filesystem::path& folder, std::string name,
           const std::vector<std::pair<Category, int64_t>>& bytes, const DiskOptions& options = {},
           std::string key = "nvme_path");
  ~DiskFile();
  DiskFile(const DiskFile&) = delete;
  DiskFile& operator=(const DiskFile&) = delete;

  // Enqueue the movement of a tensor in memory of the host from or to this byte of the file, any alignment,
  // on a CPU stream: as its work, a worker drives the disk while others compute. Reads run beside writes;
  // reads of two streams one after the other, and so do writes. Overlapping bytes are ordered by events only.
  // A fault throws from the task: file, offset, bytes wanted and got, the system's words and what to do;
  // Error(memory) for a full disk, else Error(training).
  void read(Tensor to, int64_t offset, Stream& stream);
  void write(Tensor from, int64_t offset, Stream& stream);

  int64_t bytes() const { return bytes_; }
  // "io_uring, 32 x 1.0 MiB in flight, O_DIRECT", for people; empty when dry.
  std::string engine() const;

 private:
  struct Channel;
  struct Handle;
  void move(bool write, std::byte* data, int64_t bytes, int64_t offset);

  std::string name_, key_;
  DiskOptions options_;
  int64_t bytes_ = 0;
  std::vector<Buffer> counted_;
  std::unique_ptr<Handle> file_;  // none: dry
  std::unique_ptr<Channel> reads_, writes_;
};

// Bytes that a user may still write to the file system of `folder`, and a number that tells file systems of
// one host apart. Throws Error(usage) with `key` when the folder is missing, is no folder, or cannot be
// written to.
struct DiskSpace {
  int64_t available, file_system;
};
DiskSpace disk_space(const std::filesystem::path& folder, const std::string& key);

// Bytes a second, measured in some tenths of a second with at most `bytes` in a file of its own in `folder`;
// what was written is compared with what is read back. Throws as DiskFile does.
struct DiskRates {
  double read, write;
  std::string engine;  // DiskFile::engine()
};
DiskRates measure_disk(const std::filesystem::path& folder, int64_t bytes, const DiskOptions& options,
                       const std::string& key);

}  // namespace cleave::offload
