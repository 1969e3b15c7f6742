// Writes a file sequentially under a temporary name, so that it is complete when it appears under its final
// name.
#pragma once
#include <cstddef>
#include <cstdio>
#include <string>

namespace cleave::data {

class PartialFile {
 public:
  // `mode` is fopen's: "wb", or "w+b" to read the file again. Throws Error(data) with the file for every
  // failure.
  PartialFile(std::string path, const char* mode);
  ~PartialFile();  // removes an unfinished file
  PartialFile(const PartialFile&) = delete;
  PartialFile& operator=(const PartialFile&) = delete;

  void write(const void* bytes, size_t count);
  template <class T>
  void write(T value) {
    write(&value, sizeof value);
  }
  void rewind();
  // Returns the number of bytes read, at most `count`.
  size_t read(void* bytes, size_t count);

  void complete();    // ends writing
  void appear();      // renames it to its final name, replacing an existing file
  void remove_old();  // removes an existing file of the final name

 private:
  void close();
  [[noreturn]] void broken();

  std::string path_, partial_;
  std::FILE* file_ = nullptr;
};

}  // namespace cleave::data
