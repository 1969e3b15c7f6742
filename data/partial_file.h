// A file that is written from its beginning to its end under another name than the one it is for, so that it
// is whole where it appears.
#pragma once
#include <cstddef>
#include <cstdio>
#include <string>

namespace cleave::data {

class PartialFile {
 public:
  // mode is fopen's: "wb", or "w+b" for a file that is read again. Everything that goes wrong is Error(data)
  // naming the file.
  PartialFile(std::string path, const char* mode);
  ~PartialFile();  // removes what did not appear
  PartialFile(const PartialFile&) = delete;
  PartialFile& operator=(const PartialFile&) = delete;

  void write(const void* bytes, size_t count);
  template <class T>
  void write(T value) {
    write(&value, sizeof value);
  }
  void rewind();
  // How many bytes there were, at most `count`.
  size_t read(void* bytes, size_t count);

  void complete();    // nothing is written from here on
  void appear();      // under its name, replacing what was there
  void remove_old();  // what is there under its name

 private:
  void close();
  [[noreturn]] void broken();

  std::string path_, partial_;
  std::FILE* file_ = nullptr;
};

}  // namespace cleave::data
