// Reads of files that are known beforehand, made before they are asked for.
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

// Some bytes of a file that outlives the reads.
struct FilePiece {
  const InputFile* file;
  int64_t offset, bytes;
};

class ReadAhead {
 public:
  // The caller reads, a piece at a time; or a thread reads while the caller works on what it has read: pieces
  // that follow each other in a file at once, and past the page cache where the file is on a local disk,
  // since what a training loads it does not read again.
  enum class Reader { caller, thread };
  ReadAhead(std::vector<FilePiece> pieces, Reader reader);
  ~ReadAhead();
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  // The next piece's bytes, which the caller may change; valid until the next call. Throws as
  // InputFile::read() does.
  std::span<std::byte> next();

 private:
  class Direct;
  struct Read {
    FilePiece all;
    size_t pieces;
  };
  struct Slot {
    Buffer memory;
    std::byte* bytes = nullptr;  // of a read, in the memory
    Event read;
  };
  static std::vector<Read> joined(const std::vector<FilePiece>& pieces, int64_t most);
  void begin(size_t read);

  const std::vector<FilePiece> pieces_;
  std::vector<Read> reads_;
  Memory memory_;
  std::map<const InputFile*, std::unique_ptr<Direct>> direct_;  // none: the caller reads
  std::vector<Slot> slots_;
  size_t next_ = 0;               // piece
  size_t begun_ = 0, taken_ = 0;  // reads
  size_t left_ = 0;               // pieces of the read taken last
  std::atomic<bool> failed_{false};
  Stream reader_;  // ends first
};

}  // namespace cleave::checkpoint
