// Reads known pieces of files before the caller needs them.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "core/input_file.h"
#include "device/memory.h"
#include "device/stream.h"

namespace cleave::checkpoint {

// Bytes of a file that outlives the reads.
struct FilePiece {
  const InputFile* file;
  int64_t offset, bytes;
};

class ReadAhead {
 public:
  // `caller`: next() reads one piece at a time. `thread`: a thread reads while the caller works on earlier
  // pieces. It joins adjacent pieces of a file, and bypasses the page cache on local disks, because a
  // training loads each byte once.
  enum class Reader { caller, thread };
  ReadAhead(std::vector<FilePiece> pieces, Reader reader);
  ~ReadAhead();
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  // Bytes of the next piece, writable and valid until the next call. Throws the errors of InputFile::read().
  std::span<std::byte> next();

 private:
  class Direct;
  struct Read {
    FilePiece all;
    size_t pieces;
  };
  struct Slot {
    Buffer memory;
    std::byte* bytes = nullptr;  // of a read, inside the memory
    Event read;
  };
  static std::vector<Read> joined(const std::vector<FilePiece>& pieces, int64_t most);
  void begin(size_t read);

  const std::vector<FilePiece> pieces_;
  std::vector<Read> reads_;
  Memory memory_;
  std::map<const InputFile*, std::unique_ptr<Direct>> direct_;  // empty if the caller reads
  std::vector<Slot> slots_;
  size_t next_ = 0;               // piece
  size_t begun_ = 0, taken_ = 0;  // reads
  size_t left_ = 0;               // pieces left of the current read
  std::atomic<bool> failed_{false};
  Stream reader_;  // destroyed first
};

}  // namespace cleave::checkpoint
