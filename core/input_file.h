// A regular file that is read by offsets. It is read with system calls and never mapped into memory: a file
// that somebody cuts short or that its disk cannot deliver is an error with words here, and a signal there.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "core/error.h"

namespace cleave {

class InputFile {
 public:
  // Everything that goes wrong with the file is an Error with this exit code that names it. A folder, a named
  // pipe, a device or a socket is refused, and nothing waits for a writer.
  InputFile(std::string path, Exit exit);
  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&& other) noexcept;
  ~InputFile();

  const std::string& path() const { return path_; }
  int64_t size() const { return size_; }  // when it was opened

  // Bytes [offset, offset + out.size()) of the file. Safe from several threads.
  void read(int64_t offset, std::span<std::byte> out) const;
  // All of it; a file of more than `most` bytes is refused.
  std::string text(int64_t most = INT64_MAX) const;
  // Throws when the path names another file by now, or this one was written to since it was opened. After
  // note_contents() a file whose time alone changed passes: what was noted decides.
  void require_unchanged() const;
  void note_contents();
  // A digest of a file of up to 4 MiB, and of pieces from the first byte to the last of a larger one.
  uint64_t digest() const;

 private:
  std::string path_;
  Exit exit_;
  int fd_ = -1;
  int64_t size_ = 0;              // bytes
  mutable int64_t modified_ = 0;  // nanoseconds; the latest time at which the contents were the noted ones
  std::optional<uint64_t> noted_;
};

}  // namespace cleave
