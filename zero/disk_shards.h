// Shards of the working copy whose home is a file. They are read ahead of their use and written behind after
// an update, each on a stream of its own, through a few staging buffers that are used in turn.
#pragma once
#include <deque>
#include <memory>
#include <vector>

#include "device/trace.h"
#include "offload/placement.h"

namespace cleave {

class DiskShards {
 public:
  // A shard of so many elements; returns its index. Before commit.
  int add(int64_t numel);
  // The file and the buffers, each of the largest shard; nothing where there are no shards.
  void commit(Memory& memory, const DiskPlace& place, DType type);
  void show_in(Trace& trace);  // reads and writes

  // Whether another shard can be read ahead, and its read, behind the writes of it. Shards are taken in the
  // order in which they were read ahead.
  bool room() const { return !buffers_.empty() && ahead_.size() < buffers_.size(); }
  void read_ahead(int shard);
  // The shard for work that `user` is given from now on, until released. Error(internal) out of order.
  Tensor take(int shard, Stream& user);
  void release(const Event& done);

  // Where the next value of the shard is written by work that `writer` is given from now on; the same place
  // until write_behind, whose event says that it is filled.
  Tensor begin_write(int shard, Stream& writer);
  void write_behind(int shard, const Event& filled);

  // Blocks until everything was read and written; throws what went wrong.
  void synchronize();

 private:
  struct Staging {
    Buffer memory;
    Event free;
    int shard = -1;  // that it holds; none: it may be used again after `free`
  };
  struct Shard {
    int64_t numel = 0, offset = 0;  // elements; bytes in the file
    Event written = {};
    int writing = -1;  // the buffer of its next value
  };
  int next_buffer(int shard);
  Tensor view(int buffer) const;

  std::vector<Shard> shards_;
  std::vector<Staging> buffers_;
  std::deque<int> ahead_;  // buffers, in the order of their reads
  int next_ = 0;
  std::unique_ptr<DiskFile> file_;
  Trace* trace_ = nullptr;
  std::unique_ptr<Stream> reads_, writes_;  // go first: they finish what was enqueued
};

}  // namespace cleave
