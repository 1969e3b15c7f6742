// Shards of the working copy whose home is a file. They are read ahead of their use and written behind after
// an update, each on a stream of its own, through a few staging buffers that are used in turn. Passes over
// the model repeat from step to step, so reads go on into the pass that followed the last time.
#pragma once
#include <deque>
#include <memory>
#include <vector>

#include "device/trace.h"
#include "offload/placement.h"

namespace cleave::zero {

class DiskShards {
 public:
  // A shard of so many elements; returns its index. Before commit.
  int add(int64_t numel);
  // The file and the buffers, each of the largest shard; nothing where there are no shards.
  void commit(Memory& memory, const offload::DiskHome& home, DType type);
  void show_in(Trace& trace);  // reads and writes

  // The shards that a pass takes, in this order; returns its index. Before commit.
  int add_pass(std::vector<int> shards);

  // No shard is written from begin_step to end_step. A pass may begin outside of a step as well. What was
  // read ahead and is not what the pass takes first is given up.
  void begin_step();
  void begin_pass(int pass);
  // Begins a pass whose shards nobody knows, so each is read when it is taken.
  void begin_unknown_pass() { keep_ahead(0), now_ = following_ = {}; }
  void end_step() { in_step_ = false; }
  // The shard for work that `user` is given from now on, until released. Error(internal) out of order.
  Tensor take(int shard, Stream& user);
  void release(const Event& done);

  // The shard's last value, to be read before the next call. Blocks. What was read ahead is given up.
  Tensor peek(int shard);

  // Where the next value of the shard is written by work that `writer` is given from now on; the same memory
  // until write_behind, whose event says that it is filled. What was read ahead is given up: it may be old.
  Tensor begin_write(int shard, Stream& writer);
  void write_behind(int shard, const Event& filled);
  // Nothing more is written before the next pass, so shards of the pass that is expected next are read ahead.
  void end_writes();

  // Blocks until everything was read and written; throws what went wrong, and then nothing is ahead.
  void synchronize();

 private:
  struct Staging {
    Buffer memory;
    Event free;
    int shard = -1;  // the one it holds; -1: none, and it may be filled again after `free`
  };
  struct Shard {
    int64_t numel = 0, offset = 0;  // elements; bytes in the file
    Event written = {};
    int writing = -1;  // the buffer of its next value
  };
  struct Reads {
    int pass = -1;    // none: not known
    size_t next = 0;  // of its shards
  };
  void read_ahead();
  void read(int shard);
  void keep_ahead(size_t keep);
  // What pass `index` of the step before read.
  Reads expected(size_t index) const;
  int next_buffer(int shard);
  Tensor view(int buffer) const;

  std::vector<std::vector<int>> passes_;
  std::vector<int> this_step_, step_before_;  // their passes, in order
  bool in_step_ = false;
  Reads now_, following_;
  std::vector<Shard> shards_;
  std::vector<Staging> buffers_;
  std::deque<int> ahead_;  // buffers, in the order of their reads
  int next_ = 0;
  std::unique_ptr<offload::DiskFile> file_;
  Trace* trace_ = nullptr;
  std::unique_ptr<Stream> reads_, writes_;  // go first: they finish what was enqueued
};

}  // namespace cleave::zero
