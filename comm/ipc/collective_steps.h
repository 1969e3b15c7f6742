// Plans collectives through memory that every rank of a group can read, as plain values. Each rank has a
// segment that only it writes, divided into slots. Chunks of data rotate through the slots, so a rank can
// fill one slot while others read another. Each rank executes its list of steps in stream order. Only words
// order steps between ranks: a rank publishes its progress in its own words and waits for those of the
// others. On GPUs, CUDA IPC opens the segments (comm/ipc/link.h); a test runs the same steps in host memory.
#pragma once
#include <vector>

#include "core/range.h"

namespace cleave::comm {

// Words of a rank, written only by that rank. A word is the number of the last chunk with this property:
enum class IpcWord : uint8_t {
  ready,    // its data is in the slot
  reduced,  // this rank's part of the sum is in the slot
  done      // this rank no longer reads the slots of others
};
inline constexpr int kIpcWords = 3;
// Words wrap around; GPU streams compare the same way.
constexpr bool has_come_to(uint32_t word, uint32_t value) { return int32_t(word - value) >= 0; }
// Distance ahead of the last chunk that releases every wait when a group is aborted.
inline constexpr uint32_t kIpcRelease = 1u << 30;

struct IpcStep {
  enum class Kind : uint8_t {
    wait,    // until the word of `rank` reaches `value`
    put,     // own segment[to ...] = in[from ...]
    get,     // out[to ...] = segment of `rank` [from ...]
    move,    // out[to ...] = in[from ...]; no-op if both are the same memory
    reduce,  // out[to ...] = reduction of all segments' [from ...] in rank order; own data is in[own ...]
    signal   // own word = value, after all earlier steps
  };
  Kind kind{};
  int rank = -1;
  IpcWord word{};
  uint32_t value = 0;
  int64_t from = 0, to = 0, own = 0, bytes = 0;  // offsets and length in bytes
};

using IpcSteps = std::vector<IpcStep>;

// Builds the steps of one rank's calls; all ranks make the same calls in the same order. Counts are in
// elements of `element` bytes. Semantics are those of Communicator. A slot has at least 64 bytes per rank.
// All words are `start` before the first call.
class IpcStepBuilder {
 public:
  IpcStepBuilder(int rank, int size, int64_t slot_bytes, int slots, uint32_t start = 0);

  IpcSteps all_gather(int64_t element, int64_t shard, Range piece);      // in: shard; out: full
  IpcSteps reduce_scatter(int64_t element, int64_t shard, Range piece);  // in: full; out: shard
  IpcSteps all_to_all(int64_t element, int64_t block, Range piece);
  IpcSteps all_reduce(int64_t element, int64_t numel);           // in and out are the same memory
  IpcSteps broadcast(int64_t element, int64_t numel, int root);  // in and out are the same memory
  // A message of at most one slot from rank 0 to rank 1. The sender does not wait while a slot is free.
  IpcSteps send(int64_t bytes);
  IpcSteps recv(int64_t bytes);

  uint32_t chunk() const { return chunk_; }  // of the last call
  int64_t segment_bytes() const { return slot_bytes_ * slots_; }

 private:
  using Kind = IpcStep::Kind;

  void begin_chunk(IpcSteps& steps);
  void wait_for(IpcSteps& steps, IpcWord word, uint32_t value) const;
  void signal(IpcSteps& steps, IpcWord word) const;
  // Copies one block per other rank, `stride` bytes apart, to slot offsets `room` bytes apart.
  void put_blocks(IpcSteps& steps, int64_t from, int64_t stride, int64_t room, int64_t bytes) const;
  void all_reduce_chunk(IpcSteps& steps, int64_t element, Range chunk);
  int64_t slot() const { return int64_t(chunk_ % uint32_t(slots_)) * slot_bytes_; }  // of the current chunk
  // Elements of a rank's block if a slot holds one block per rank.
  int64_t block_most(int64_t element) const;

  int rank_, size_;
  int64_t slot_bytes_;
  int slots_;
  uint32_t chunk_;
};

}  // namespace cleave::comm
