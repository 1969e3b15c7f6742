// A regular file that is read by offset. Uses system calls instead of a memory map: a truncated file or a
// disk error then raises an Error instead of a signal.
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
  // All failures throw an Error with this exit code and the file's name. Folders, named pipes, devices and
  // sockets are errors; the open never waits for a writer.
  InputFile(std::string path, Exit exit);
  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&& other) noexcept;
  ~InputFile();

  const std::string& path() const { return path_; }
  int64_t size() const { return size_; }  // when the file was opened

  // Bytes [offset, offset + out.size()) of the file. Safe from several threads.
  void read(int64_t offset, std::span<std::byte> out) const;
  // The whole file; throws if it has more than `most` bytes.
  std::string text(int64_t most = INT64_MAX) const;
  // Throws if the path names another file, or if the file was modified since it was opened. After
  // note_contents(), the digest decides: a file with a new time and the same digest passes.
  void require_unchanged() const;
  void note_contents();
  // Digest of the whole file up to 4 MiB, and of evenly spaced pieces of a larger file.
  uint64_t digest() const;

 private:
  std::string path_;
  Exit exit_;
  int fd_ = -1;
  int64_t size_ = 0;              // bytes
  mutable int64_t modified_ = 0;  // nanoseconds; last time at which the contents matched
  std::optional<uint64_t> noted_;
};

}  // namespace cleave
