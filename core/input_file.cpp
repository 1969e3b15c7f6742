#include "core/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

namespace cleave {
namespace {

int64_t modified_ns(const struct stat& s) {
  return int64_t(s.st_mtim.tv_sec) * 1'000'000'000 + s.st_mtim.tv_nsec;
}

}  // namespace

InputFile::InputFile(std::string path, Exit exit) : path_(std::move(path)), exit_(exit) {
  // Without O_NONBLOCK the open of a named pipe would wait for a writer.
  fd_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  require(fd_ >= 0, exit, "{}: cannot be opened: {}; give the path of a readable file", path_,
          std::strerror(errno));
  struct stat status {};
  const bool examined = ::fstat(fd_, &status) == 0;
  const int error = errno;
  if (examined && S_ISREG(status.st_mode)) {
    size_ = status.st_size, modified_ = modified_ns(status);
    return;
  }
  ::close(fd_);  // the destructor does not run if the constructor throws
  require(examined, exit, "{}: cannot be examined: {}", path_, std::strerror(error));
  require(!S_ISDIR(status.st_mode), exit, "{}: is a directory; name one file in it", path_);
  fail(exit, "{}: is not a regular file; save its contents to a file first", path_);
}

InputFile::InputFile(InputFile&& other) noexcept
    : path_(std::move(other.path_)),
      exit_(other.exit_),
      fd_(std::exchange(other.fd_, -1)),
      size_(other.size_),
      modified_(other.modified_),
      noted_(other.noted_) {}

InputFile& InputFile::operator=(InputFile&& other) noexcept {
  std::swap(path_, other.path_), std::swap(exit_, other.exit_), std::swap(fd_, other.fd_);
  std::swap(size_, other.size_), std::swap(modified_, other.modified_);
  std::swap(noted_, other.noted_);
  return *this;
}

InputFile::~InputFile() {
  if (fd_ >= 0) ::close(fd_);
}

void InputFile::read(int64_t offset, std::span<std::byte> out) const {
  for (size_t done = 0; done < out.size();) {
    const ssize_t got = ::pread(fd_, out.data() + done, out.size() - done, offset + int64_t(done));
    if (got < 0 && errno == EINTR) continue;
    require(got >= 0, exit_, "{}: cannot be read at byte {}: {}", path_, offset + int64_t(done),
            std::strerror(errno));
    require(got > 0, exit_,
            "{}: ends at byte {}, but had {} bytes when it was opened; the file was truncated during the run",
            path_, offset + int64_t(done), size_);
    done += size_t(got);
  }
}

std::string InputFile::text(int64_t most) const {
  require(size_ <= most, exit_, "{}: has {} bytes; at most {} are read here", path_, size_, most);
  std::string all(size_t(size_), '\0');
  read(0, std::as_writable_bytes(std::span(all)));
  return all;
}

// FNV-1a over 64 pieces.
uint64_t InputFile::digest() const {
  constexpr int64_t kPiece = 1 << 16, kPieces = 64;
  std::vector<std::byte> piece(size_t(std::min(kPiece, size_)));
  uint64_t sum = 0xCBF29CE484222325;
  for (int64_t i = 0; i < kPieces; ++i) {
    const int64_t spread = (size_ - int64_t(piece.size())) * i / (kPieces - 1);
    read(spread, piece);
    for (const std::byte b : piece) sum = (sum ^ uint64_t(b)) * 0x100000001B3;
  }
  return sum;
}

void InputFile::note_contents() { noted_ = digest(); }

void InputFile::require_unchanged() const {
  struct stat here {
  }, named{};
  const bool examined = ::fstat(fd_, &here) == 0;
  require(examined, exit_, "{}: cannot be examined: {}", path_, std::strerror(errno));
  require(here.st_size == size_, exit_, "{}: has {} bytes and had {} when it was opened", path_,
          int64_t(here.st_size), size_);
  const int64_t modified = modified_ns(here);
  require(modified == modified_ || (noted_ && digest() == *noted_), exit_, "{}: changed since it was opened",
          path_);
  modified_ = modified;
  const bool there = ::stat(path_.c_str(), &named) == 0;
  require(there, exit_, "{}: no longer exists: {}", path_, std::strerror(errno));
  require(here.st_dev == named.st_dev && here.st_ino == named.st_ino, exit_,
          "{}: was replaced by another file after it was opened", path_);
}

}  // namespace cleave
