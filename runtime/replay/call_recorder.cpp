#include "runtime/replay/call_recorder.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "core/phase.h"

namespace cleave::runtime {

CallRecorder::~CallRecorder() {
  if (file_ >= 0) ::close(file_);
}

void CallRecorder::record_in_memory() { on_ = true, slots_.clear(), end_ = 0; }

void CallRecorder::record_in_file(const std::filesystem::path& file) {
  path_ = file, error_ = 0;
  if (file_ >= 0) ::close(file_);
  file_ = ::open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  require(file_ >= 0, Exit::checkpoint, "{}: cannot be written: {}", file.string(),
          std::generic_category().message(errno));
  record_in_memory();
}

StoredBytes CallRecorder::add(const void* bytes, int64_t size) {
  const StoredBytes stored{end_, size, checkpoint::checksum_of(bytes, size)};
  write(end_, bytes, size);
  end_ += size;
  return stored;
}

void CallRecorder::write(int64_t at, const void* bytes, int64_t size) {
  for (const char* from = static_cast<const char*>(bytes); size > 0;) {
    const ssize_t n = ::pwrite(file_, from, size_t(size), at);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      int none = 0;
      error_.compare_exchange_strong(none, n < 0 ? errno : ENOSPC);
      return;
    }
    from += n, at += n, size -= n;
  }
}

size_t CallRecorder::begin(const comm::SeenCall& call, Stream& stream) {
  if (!on_) return 0;
  Slot& slot = slots_.emplace_back(Slot{{.group = call.group.path,
                                         .post = call.post,
                                         .what = std::string(call.what),
                                         .phase = PhaseMark::current(),
                                         .sent_bytes = bytes_of(call.sent),
                                         .received = {end_, bytes_of(call.received), 0}}});
  slot.at = end_;
  end_ += slot.call.received.bytes;
  moved_.read(call.sent, stream,
              [&slot](const std::byte* bytes, int64_t size) { slot.sent.add(bytes, size); });
  return slots_.size() - 1;
}

void CallRecorder::end(size_t number, const comm::SeenCall& call, Stream& stream) {
  if (!on_) return;
  Slot& slot = slots_[number];
  moved_.read(call.received, stream,
              [this, &slot](const std::byte* bytes, int64_t size) { take(slot, bytes, size); });
}

// Runs on a thread of the stream; other calls have other slots and other bytes of the file.
void CallRecorder::take(Slot& slot, const std::byte* bytes, int64_t size) {
  slot.received.add(bytes, size);
  if (file_ < 0)
    slot.bytes.insert(slot.bytes.end(), bytes, bytes + size);
  else if (error_ == 0)
    write(slot.at, bytes, size);
  slot.at += size;
}

void CallRecorder::drop() {
  on_ = false;
  slots_.clear();
  if (file_ >= 0) ::close(std::exchange(file_, -1));
}

std::vector<RecordedCall> CallRecorder::stop() {
  on_ = false;
  std::vector<RecordedCall> calls;
  memory_.clear();
  for (Slot& slot : slots_) {
    slot.call.sent = slot.sent.value(), slot.call.received.sum = slot.received.value();
    memory_.insert(memory_.end(), slot.bytes.begin(), slot.bytes.end());
    calls.push_back(std::move(slot.call));
  }
  slots_.clear();
  if (file_ >= 0) {
    if (error_ == 0 && ::fsync(file_) != 0) error_ = errno;
    if (::close(std::exchange(file_, -1)) != 0 && error_ == 0) error_ = errno;
    require(error_ == 0, Exit::checkpoint, "{}: cannot be written: {}", path_.string(),
            std::generic_category().message(error_));
  }
  return calls;
}

}  // namespace cleave::runtime
