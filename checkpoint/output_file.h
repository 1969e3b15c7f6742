// A file that is written once, from its first byte to its last, behind the caller: while one piece is on its
// way to the disk, the next is made.
//
// Every file system sees one sequential write after another and a sync. On those of local disks large files
// pass by the page cache: a core's work of copying and of looking after pages is saved, the disk is kept busy
// from the first piece on, and the training's memory is not filled with what nobody reads soon.
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
  // Bytes of a write, and writes in memory: one on its way, others ready behind it, one being made.
  static constexpr int64_t kPiece = int64_t{4} << 20;
  static constexpr int kPieces = 4;

  // Makes the file, or empties the one that is there. `bytes` is how many will be written: a file of less
  // than two pieces is written by the caller's own thread. Every member throws Error(checkpoint) with the
  // path and what the system said; what fails behind the caller is thrown by a later call.
  OutputFile(const std::filesystem::path& path, int64_t bytes);
  ~OutputFile();  // what was not closed may be anything
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(const void* data, int64_t bytes);  // copies them
  // Returns when all bytes are on the disk.
  void close();

 private:
  void pass_on();
  void put(const std::byte* at, int64_t bytes);
  void leave_direct();
  [[noreturn]] void refuse(const char* what) const;

  std::filesystem::path path_;
  int file_;
  bool direct_ = false;  // past the page cache
  Memory memory_;
  Buffer pieces_[kPieces];
  Event written_[kPieces];
  int filling_ = 0;
  int64_t filled_ = 0;  // bytes
  std::atomic<bool> failed_{false};
  Stream writer_;  // ends first
};

}  // namespace cleave::checkpoint
