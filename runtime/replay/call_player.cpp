#include "runtime/replay/call_player.h"

#include "core/phase.h"

namespace cleave::runtime {

CallPlayer::CallPlayer(const std::filesystem::path& folder, Device device)
    : file_((folder / StepRecord::kCalls).string(), Exit::checkpoint), moved_(device) {}

void CallPlayer::require_whole(const StoredBytes& stored) const {
  require(stored.at >= 0 && stored.bytes >= 0 && stored.at <= file_.size() - stored.bytes, Exit::checkpoint,
          "{}: too short (got {} bytes, expected {}); record the step again", file_.path(), file_.size(),
          stored.at + stored.bytes);
}

void CallPlayer::play(std::span<const RecordedCall> calls, bool compares) {
  for (const RecordedCall& call : calls) require_whole(call.received);
  calls_ = calls, compares_ = compares, made_ = 0;
  slots_.clear();
}

std::vector<std::byte> CallPlayer::bytes(const StoredBytes& stored) const {
  require_whole(stored);
  std::vector<std::byte> out(size_t(stored.bytes));
  file_.read(stored.at, out);
  require(checkpoint::checksum_of(out.data(), stored.bytes) == stored.sum, Exit::checkpoint,
          "{}: {} bytes at {} are damaged (their checksum differs); record the step again", file_.path(),
          stored.bytes, stored.at);
  return out;
}

size_t CallPlayer::begin(const comm::SeenCall& seen, Stream& stream) {
  RecordedCall now{.group = seen.group.path,
                   .post = seen.post,
                   .what = std::string(seen.what),
                   .phase = PhaseMark::current(),
                   .received = {}};
  const auto fits = [&](const RecordedCall& c) {
    return now.group == c.group && now.post == c.post && bytes_of(seen.sent) == c.sent_bytes &&
           bytes_of(seen.received) == c.received.bytes;
  };
  // A rank alone has no comparisons of ranks, which make calls of their own when they are set up.
  while (!compares_ && made_ < calls_.size() && !(fits(calls_[made_]) && calls_[made_].what == now.what))
    ++made_;
  require(made_ < calls_.size(), Exit::checkpoint,
          "{}: the record ends after {} calls, but the rank makes {}; replay it with the version and the "
          "device that recorded it",
          file_.path(), calls_.size(), now.describe(made_));
  const RecordedCall& call = calls_[made_];
  require(
      fits(call), Exit::checkpoint,
      "{}: the rank makes {}, but it recorded {}; replay it with the version and the device that recorded "
      "it",
      file_.path(), now.describe(made_), call.describe(made_));
  Slot& slot = slots_.emplace_back(Slot{&call});
  slot.at = call.received.at;
  moved_.read(seen.sent, stream,
              [&slot](const std::byte* bytes, int64_t size) { slot.sent.add(bytes, size); });
  ++made_;
  return slots_.size() - 1;
}

void CallPlayer::end(size_t number, const comm::SeenCall& seen, Stream& stream) {
  Slot& slot = slots_[number];
  moved_.write(seen.received, stream,
               [this, &slot](std::byte* bytes, int64_t size) { give(slot, bytes, size); });
}

// Runs on a thread of the stream.
void CallPlayer::give(Slot& slot, std::byte* bytes, int64_t size) const {
  const StoredBytes& stored = slot.call->received;
  file_.read(slot.at, {bytes, size_t(size)});
  slot.at += size;
  slot.received.add(bytes, size);
  require(slot.at < stored.at + stored.bytes || slot.received.value() == stored.sum, Exit::checkpoint,
          "{}: {} bytes at {} are damaged (their checksum differs); record the step again", file_.path(),
          stored.bytes, stored.at);
}

std::vector<size_t> CallPlayer::differing() const {
  std::vector<size_t> out;
  for (size_t i = 0; compares_ && i < slots_.size(); ++i)
    if (slots_[i].call->sent_bytes > 0 && slots_[i].sent.value() != slots_[i].call->sent) out.push_back(i);
  return out;
}

}  // namespace cleave::runtime
