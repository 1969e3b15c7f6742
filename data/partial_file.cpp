#include "data/partial_file.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include "core/error.h"

namespace cleave::data {

PartialFile::PartialFile(std::string path, const char* mode)
    : path_(std::move(path)), partial_(path_ + ".partial"), file_(std::fopen(partial_.c_str(), mode)) {
  if (!file_) broken();
}

PartialFile::~PartialFile() { close(), std::remove(partial_.c_str()); }

void PartialFile::write(const void* bytes, size_t count) {
  if (std::fwrite(bytes, 1, count, file_) != count) broken();
}

void PartialFile::rewind() {
  if (std::fseek(file_, 0, SEEK_SET) != 0) broken();
}

size_t PartialFile::read(void* bytes, size_t count) {
  const size_t got = std::fread(bytes, 1, count, file_);
  if (std::ferror(file_)) broken();
  return got;
}

void PartialFile::complete() {
  if (std::fclose(std::exchange(file_, nullptr)) != 0) broken();
}

void PartialFile::appear() {
  if (std::rename(partial_.c_str(), path_.c_str()) != 0) broken();
}

void PartialFile::remove_old() {
  if (std::remove(path_.c_str()) != 0 && errno != ENOENT) broken();
}

void PartialFile::close() {
  if (file_) std::fclose(std::exchange(file_, nullptr));
}

void PartialFile::broken() {
  const int error = errno;
  close();
  fail(Exit::data, "{}: cannot be written: {}; check the folder, its permissions and the free space", path_,
       std::strerror(error));
}

}  // namespace cleave::data
