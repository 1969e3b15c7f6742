// Working-copy shards on disk. A read stream fetches them ahead of use and a write stream stores them in the
// background after an update, through a ring of staging buffers. The passes of the last step predict the
// reads of this one.
#pragma once
#include <deque>
#include <memory>
#include <vector>

#include "device/trace.h"
#include "offload/placement.h"

namespace cleave::zero {

class DiskShards {
 public:
  // Adds a shard of `numel` elements and returns its index. Call before commit.
  int add(int64_t numel);
  int shards() const { return int(shards_.size()); }
  // Creates the file and the staging buffers, each as large as the largest shard. Does nothing without
  // shards.
  void commit(Memory& memory, const offload::DiskHome& home, DType type);
  void show_in(Trace& trace);  // traces reads and writes

  // Adds a pass that takes these shards in this order and returns its index. Call before commit.
  int add_pass(std::vector<int> shards);

  // No shard is written between begin_step and end_step. A pass may also run outside a step. begin_pass drops
  // prefetched shards that do not match the start of the pass.
  void begin_step();
  void begin_pass(int pass);
  // Begins a pass with unknown shards: take() reads each one on demand.
  void begin_unknown_pass() { keep_ahead(0), now_ = following_ = {}; }
  void end_step() { in_step_ = false; }
  // Returns the shard for work enqueued on `user` until release. Throws Error(internal) if called out of
  // order.
  Tensor take(int shard, Stream& user);
  void release(const Event& done);

  // Returns the last value of the shard, valid until the next call. Blocks, and drops prefetched shards.
  Tensor peek(int shard);

  // Returns memory for the next value of the shard, to be written by work enqueued on `writer`. Repeated
  // calls return the same memory until write_behind; its event marks the memory as filled. Drops prefetched
  // shards, because they may be stale.
  Tensor begin_write(int shard, Stream& writer);
  void write_behind(int shard, const Event& filled);
  // Ends the writes before the next pass, so its expected shards can be prefetched.
  void end_writes();

  // Blocks until all reads and writes are done. Throws the first error; nothing is prefetched afterwards.
  void synchronize();

 private:
  struct Staging {
    Buffer memory;
    Event free;
    int shard = -1;  // shard in the buffer; -1: none, and the buffer may be filled after `free`
  };
  struct Shard {
    int64_t numel = 0, offset = 0;  // elements; bytes in the file
    Event written = {};
    int writing = -1;  // buffer of its next value
  };
  struct Reads {
    int pass = -1;    // -1: unknown
    size_t next = 0;  // index into its shards
  };
  void read_ahead();
  void read(int shard);
  void keep_ahead(size_t keep);
  // Returns the reads of pass `index` in the previous step.
  Reads expected(size_t index) const;
  int next_buffer(int shard);
  Tensor view(int buffer) const;

  std::vector<std::vector<int>> passes_;
  std::vector<int> this_step_, step_before_;  // their passes, in order
  bool in_step_ = false;
  Reads now_, following_;
  std::vector<Shard> shards_;
  std::vector<Staging> buffers_;
  std::deque<int> ahead_;  // buffers, in read order
  int next_ = 0;
  std::unique_ptr<offload::DiskFile> file_;
  Trace* trace_ = nullptr;
  std::unique_ptr<Stream> reads_, writes_;  // destroyed first: they finish enqueued work
};

}  // namespace cleave::zero
