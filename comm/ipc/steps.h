// Collectives through memory that every rank of a group can read, as plain values. Each rank has a segment,
// which only it writes; chunks of data take turns in the slots of it, so that a rank fills one slot while the
// others still read another. What a rank does is a list of steps in the order of its stream, and between
// ranks only words order the steps: a rank tells by its own how far it is, and waits for those of the others.
// On GPUs the segments are opened by CUDA IPC (comm/ipc/link.h); a test takes the same steps in host memory.
#pragma once
#include <vector>

#include "core/range.h"

namespace cleave::comm {

// A word of a rank, written by it alone, is the number of the last chunk of which ...
enum class IpcWord : uint8_t {
  ready,    // the data lies in its slot
  reduced,  // its part of the sum lies in its slot
  done      // it no longer reads the slots of the others
};
inline constexpr int kIpcWords = 3;
// Words wrap; a GPU's stream compares in the same way.
constexpr bool has_come_to(uint32_t word, uint32_t value) { return int32_t(word - value) >= 0; }
// A word this far ahead of the last chunk lets every wait pass, when a group is given up.
inline constexpr uint32_t kIpcRelease = 1u << 30;

struct IpcStep {
  enum class Kind : uint8_t {
    wait,    // until the word of `rank` has come to `value`
    put,     // own segment[to ...] = in[from ...]
    get,     // out[to ...] = segment of `rank` [from ...]
    move,    // out[to ...] = in[from ...]; nothing where both are the same memory
    reduce,  // out[to ...] = all segments' [from ...] reduced in rank order, but of this rank in[own ...]
    signal   // own word = value, after all steps before
  };
  Kind kind{};
  int rank = -1;
  IpcWord word{};
  uint32_t value = 0;
  int64_t from = 0, to = 0, own = 0, bytes = 0;  // offsets and length in bytes
};

using IpcSteps = std::vector<IpcStep>;

// Makes the steps of the calls of one rank of a group, which all ranks make in the same order. Counts are of
// elements of `element` bytes; what is not said here is as in Communicator. A slot has 64 bytes or more for
// each rank. All words are `start` before the first call.
class IpcStepBuilder {
 public:
  IpcStepBuilder(int rank, int size, int64_t slot_bytes, int slots, uint32_t start = 0);

  IpcSteps all_gather(int64_t element, int64_t shard, Range piece);      // in: shard; out: full
  IpcSteps reduce_scatter(int64_t element, int64_t shard, Range piece);  // in: full; out: shard
  IpcSteps all_to_all(int64_t element, int64_t block, Range piece);
  IpcSteps all_reduce(int64_t element, int64_t numel);           // in and out are the same memory
  IpcSteps broadcast(int64_t element, int64_t numel, int root);  // in and out are the same memory
  // A message of at most a slot from rank 0 to rank 1. The sender waits for nothing while a slot is free.
  IpcSteps send(int64_t bytes);
  IpcSteps recv(int64_t bytes);

  uint32_t chunk() const { return chunk_; }  // of the last call
  int64_t segment_bytes() const { return slot_bytes_ * slots_; }

 private:
  using Kind = IpcStep::Kind;

  void begin_chunk(IpcSteps& steps);
  void wait_for(IpcSteps& steps, IpcWord word, uint32_t value) const;
  void signal(IpcSteps& steps, IpcWord word) const;
  // A block of the others each, `stride` bytes apart, to offsets `room` bytes apart in the slot.
  void put_blocks(IpcSteps& steps, int64_t from, int64_t stride, int64_t room, int64_t bytes) const;
  void all_reduce_chunk(IpcSteps& steps, int64_t element, Range chunk);
  int64_t slot() const { return int64_t(chunk_ % uint32_t(slots_)) * slot_bytes_; }  // of the current chunk
  // Elements of a rank's block where a slot holds one of every rank.
  int64_t block_most(int64_t element) const;

  int rank_, size_;
  int64_t slot_bytes_;
  int slots_;
  uint32_t chunk_;
};

}  // namespace cleave::comm
