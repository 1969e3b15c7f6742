#include "zero/disk_shards.h"

#include <algorithm>
#include <utility>

namespace cleave::zero {

int DiskShards::add(int64_t numel) {
  shards_.push_back({.numel = numel});
  return int(shards_.size()) - 1;
}

int DiskShards::add_pass(std::vector<int> shards) {
  passes_.push_back(std::move(shards));
  return int(passes_.size()) - 1;
}

void DiskShards::commit(Memory& memory, const offload::DiskHome& home, DType type) {
  if (shards_.empty()) return;
  CHECK(home.buffers >= 2, "shards on disk pass through at least 2 staging buffers, got {}", home.buffers);
  int64_t bytes = 0, largest = 0;
  for (Shard& s : shards_) {
    s.offset = bytes;
    bytes += round_up(s.numel * size_of(type), offload::DiskFile::kAlignment);
    largest = std::max(largest, s.numel);
  }
  using Bytes = std::vector<std::pair<Category, int64_t>>;
  file_ = std::make_unique<offload::DiskFile>(memory, home.folder, home.name,
                                              Bytes{{Category::weights, bytes}}, home.options, home.key);
  buffers_.resize(size_t(home.buffers));
  for (Staging& b : buffers_)
    b.memory =
        memory.allocate(home.staging, Category::staging, type, {largest}, "layers on their way to disk");
  const Stream::Mode mode = memory.dry() ? Stream::Mode::dry : Stream::Mode::worker;
  reads_ = std::make_unique<Stream>(mode), writes_ = std::make_unique<Stream>(mode);
}

void DiskShards::show_in(Trace& trace) {
  if (!file_) return;
  trace_ = &trace;
  trace.name(*reads_, "weights read from disk"), trace.name(*writes_, "weights written to disk");
}

int DiskShards::next_buffer(int shard) {
  const int buffer = std::exchange(next_, (next_ + 1) % int(buffers_.size()));
  CHECK(buffers_[size_t(buffer)].shard < 0, "shard {} needs the buffer that shard {} is in", shard,
        buffers_[size_t(buffer)].shard);
  buffers_[size_t(buffer)].shard = shard;
  return buffer;
}

Tensor DiskShards::view(int buffer) const {
  const Staging& b = buffers_[size_t(buffer)];
  return b.memory.tensor().slice({0, shards_[size_t(b.shard)].numel});
}

void DiskShards::begin_step() {
  in_step_ = true;
  if (!this_step_.empty()) step_before_ = std::exchange(this_step_, {});
}

void DiskShards::begin_pass(int pass) {
  const std::vector<int>& shards = passes_[size_t(pass)];
  size_t ahead = 0;
  while (ahead < std::min(shards.size(), ahead_.size()) &&
         buffers_[size_t(ahead_[ahead])].shard == shards[ahead])
    ++ahead;
  keep_ahead(ahead);
  now_ = {pass, ahead}, following_ = {};
  if (in_step_) {
    this_step_.push_back(pass);
    following_ = expected(this_step_.size());
  }
  read_ahead();
}

void DiskShards::end_writes() {
  if (in_step_ || this_step_.empty()) return;
  step_before_ = this_step_;
  following_ = expected(0);
  read_ahead();
}

DiskShards::Reads DiskShards::expected(size_t index) const {
  return {index < step_before_.size() ? step_before_[index] : -1, 0};
}

void DiskShards::read_ahead() {
  for (Reads* reads : {&now_, &following_})
    for (; reads->pass >= 0 && reads->next < passes_[size_t(reads->pass)].size(); ++reads->next) {
      if (ahead_.size() == buffers_.size()) return;
      read(passes_[size_t(reads->pass)][reads->next]);
    }
}

// Reads after pending writes of the shard.
void DiskShards::read(int shard) {
  const int buffer = next_buffer(shard);
  reads_->wait(buffers_[size_t(buffer)].free);
  reads_->wait(shards_[size_t(shard)].written);
  {
    const TraceSpan seen(trace_, *reads_, "disk", "read");
    file_->read(view(buffer), shards_[size_t(shard)].offset, *reads_);
  }
  buffers_[size_t(buffer)].free = reads_->record();  // holds the shard until release
  ahead_.push_back(buffer);
}

void DiskShards::keep_ahead(size_t keep) {
  for (; ahead_.size() > keep; ahead_.pop_back()) {
    next_ = ahead_.back();
    buffers_[size_t(next_)].shard = -1;
  }
}

Tensor DiskShards::take(int shard, Stream& user) {
  if (now_.pass < 0) read(shard);
  CHECK(!ahead_.empty() && buffers_[size_t(ahead_.front())].shard == shard, "shard {} was not read ahead",
        shard);
  user.wait(buffers_[size_t(ahead_.front())].free);
  return view(ahead_.front());
}

void DiskShards::release(const Event& done) {
  Staging& b = buffers_[size_t(ahead_.front())];
  b.free = done, b.shard = -1;
  ahead_.pop_front();
  read_ahead();
}

Tensor DiskShards::peek(int shard) {
  keep_ahead(0);
  read(shard);
  reads_->synchronize();
  return view(ahead_.back());
}

Tensor DiskShards::begin_write(int shard, Stream& writer) {
  int& buffer = shards_[size_t(shard)].writing;
  if (buffer < 0) {
    keep_ahead(0);
    buffer = next_buffer(shard);
    writer.wait(buffers_[size_t(buffer)].free);
  }
  return view(buffer);
}

void DiskShards::write_behind(int shard, const Event& filled) {
  Shard& s = shards_[size_t(shard)];
  Staging& b = buffers_[size_t(std::exchange(s.writing, -1))];
  writes_->wait(filled);
  {
    const TraceSpan seen(trace_, *writes_, "disk", "write");
    file_->write(b.memory.tensor().slice({0, s.numel}), s.offset, *writes_);
  }
  s.written = b.free = writes_->record();
  b.shard = -1;
}

void DiskShards::synchronize() {
  if (!file_) return;
  try {
    writes_->synchronize(), reads_->synchronize();
  } catch (...) {
    keep_ahead(0);  // a failed read skips the reads after it
    throw;
  }
}

}  // namespace cleave::zero
