#include "data/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "core/error.h"

namespace cleave {
namespace {

struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

}  // namespace

MappedFile::MappedFile(const std::string& path) : path_(path) {
  // Without O_NONBLOCK the open of a named pipe would wait for a writer.
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  require(file.fd >= 0, Exit::data, "{}: cannot be opened: {}; give the path of a readable data file", path,
          std::strerror(errno));
  struct stat status {};
  const bool examined = ::fstat(file.fd, &status) == 0;
  require(examined, Exit::data, "{}: cannot be examined: {}", path, std::strerror(errno));
  require(!S_ISDIR(status.st_mode), Exit::data, "{}: is a directory; give the path of one data file in it",
          path);
  require(S_ISREG(status.st_mode), Exit::data, "{}: is not a regular file; save its contents to a file first",
          path);
  if (status.st_size == 0) return;
  void* address = ::mmap(nullptr, size_t(status.st_size), PROT_READ, MAP_SHARED, file.fd, 0);
  require(address != MAP_FAILED, Exit::data, "{}: cannot be mapped into memory: {}", path,
          std::strerror(errno));
  bytes_ = {static_cast<const uint8_t*>(address), size_t(status.st_size)};
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  if (this == &other) return *this;
  unmap();
  path_ = std::move(other.path_);
  bytes_ = std::exchange(other.bytes_, {});
  return *this;
}

MappedFile::~MappedFile() { unmap(); }

void MappedFile::unmap() noexcept {
  if (!bytes_.empty()) ::munmap(const_cast<uint8_t*>(bytes_.data()), bytes_.size());
  bytes_ = {};
}

}  // namespace cleave
