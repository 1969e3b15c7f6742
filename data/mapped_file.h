// A file's bytes without reading them: a read-only memory map, so that a corpus larger than memory costs only
// what is touched, and ranks of one machine share its pages.
#pragma once
#include <cstdint>
#include <span>
#include <string>

namespace cleave {

class MappedFile {
 public:
  // Throws Error(data) when the path is missing, unreadable or not a regular file. An empty file is legal.
  explicit MappedFile(const std::string& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const uint8_t> bytes() const { return bytes_; }
  const std::string& path() const { return path_; }

 private:
  void unmap() noexcept;

  std::string path_;
  std::span<const uint8_t> bytes_;
};

}  // namespace cleave
