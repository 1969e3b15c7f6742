#include "checkpoint/output_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "checkpoint/direct_io.h"
#include "core/write_error.h"

namespace cleave::checkpoint {

OutputFile::OutputFile(const std::filesystem::path& path, int64_t bytes)
    : path_(path),
      file_(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)),
      writer_(bytes < 2 * kPiece ? Stream::Mode::inline_ : Stream::Mode::worker) {
  if (file_ < 0) refuse("open");
  if (bytes >= 2 * kPiece) direct_ = bypass_page_cache(file_);
  for (Buffer& piece : pieces_)
    piece = memory_.allocate(MemoryKind::host, Category::staging, DType::uint8,
                             {std::clamp<int64_t>(bytes, 1, kPiece)}, "piece of a file");
}

OutputFile::~OutputFile() {
  try {
    writer_.synchronize();
  } catch (const Error&) {  // the caller already left with another error
  }
  if (file_ >= 0) ::close(file_);
}

void OutputFile::write(const void* data, int64_t bytes) {
  for (const auto* from = static_cast<const std::byte*>(data); bytes > 0;) {
    const Tensor piece = pieces_[filling_];
    const int64_t n = std::min(bytes, piece.bytes() - filled_);
    std::memcpy(static_cast<std::byte*>(piece.raw()) + filled_, from, size_t(n));
    from += n, bytes -= n, filled_ += n;
    if (filled_ == piece.bytes()) pass_on();
  }
}

// Passes the piece to the writer, and waits until the next one is free.
void OutputFile::pass_on() {
  writer_.enqueue(
      [this, at = static_cast<const std::byte*>(pieces_[filling_].tensor().raw()), bytes = filled_] {
        try {
          put(at, bytes);
        } catch (...) {
          failed_ = true;
          throw;
        }
      });
  written_[filling_] = writer_.record();
  filling_ = (filling_ + 1) % kPieces, filled_ = 0;
  written_[filling_].wait();
  if (failed_) writer_.synchronize();
}

void OutputFile::put(const std::byte* at, int64_t bytes) {
  while (bytes > 0) {
    if (direct_ && bytes < kDirectAlignment) leave_direct();
    const int64_t whole = direct_ ? bytes - bytes % kDirectAlignment : bytes;
    const ssize_t n = ::write(file_, at, size_t(whole));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EINVAL && direct_) {
      leave_direct();
      continue;
    }
    if (n < 0) refuse("write");
    at += n, bytes -= n;
  }
}

void OutputFile::leave_direct() {
  if (!through_page_cache(file_)) refuse("write");
  direct_ = false;
}

void OutputFile::close() {
  if (filled_ > 0) pass_on();
  writer_.synchronize();
  if (fsync(file_) != 0) refuse("sync");
  if (::close(std::exchange(file_, -1)) != 0) refuse("close");
}

void OutputFile::refuse(const char* what) const {
  fail(Exit::checkpoint, "cannot {} {}: {}; {}", what, path_.string(), std::strerror(errno),
       remedy_of_writing(errno));
}

}  // namespace cleave::checkpoint
