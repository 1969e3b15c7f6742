// File that is written once, front to back, in the background: the caller fills one piece while another is
// written.
//
// Every file system sees sequential writes and one sync. On local disks, large files bypass the page cache.
// This saves the CPU time of copies and page management, keeps the disk busy from the first piece on, and
// does not fill the training's memory with cached data.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>

#include "device/memory.h"
#include "device/stream.h"

namespace cleave::checkpoint {

class OutputFile {
 public:
  // Bytes of a write, and the pieces in memory: one in transit, others queued, one being filled.
  static constexpr int64_t kPiece = int64_t{4} << 20;
  static constexpr int kPieces = 4;

  // Creates or truncates the file. `bytes` is the expected size; the caller's own thread writes a file of
  // fewer than two pieces. Every member throws Error(checkpoint) with the path and the system's error; a
  // later call throws errors of background writes.
  OutputFile(const std::filesystem::path& path, int64_t bytes);
  ~OutputFile();  // contents are unspecified without close()
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(const void* data, int64_t bytes);  // copies the bytes
  // Returns when all bytes are on disk.
  void close();

 private:
  void pass_on();
  void put(const std::byte* at, int64_t bytes);
  void leave_direct();
  [[noreturn]] void refuse(const char* what) const;

  std::filesystem::path path_;
  int file_;
  bool direct_ = false;  // bypasses the page cache
  Memory memory_;
  Buffer pieces_[kPieces];
  Event written_[kPieces];
  int filling_ = 0;
  int64_t filled_ = 0;  // bytes
  std::atomic<bool> failed_{false};
  Stream writer_;  // destroyed first
};

}  // namespace cleave::checkpoint
