// The shared memory of a group of ranks on one host: a header, one entry a rank, a mailbox for each pair, and
// two slots a rank through which collectives pass their data.
#pragma once
#include <atomic>
#include <cstdint>

#include "comm/post.h"

namespace cleave::comm::shm {

using Counter = std::atomic<uint64_t>;
using Futex = std::atomic<uint32_t>;
static_assert(Counter::is_always_lock_free && Futex::is_always_lock_free);

inline constexpr size_t kSlotBytes =
    512 << 10;  // a rank's chunk and its neighbour's stay in the second-level cache
inline constexpr size_t kPage = 4096;
inline constexpr int64_t kInlineBytes = 1024;  // of a message that travels in its record
inline constexpr uint64_t kRecords = 256;      // messages under way from one rank to another

struct alignas(64) Header {
  Futex bell;  // rung when something changed and somebody sleeps
  Futex sleepers;
  Futex poisoned;  // 1 while the reason is being written, then 2
  char reason[1024];
};

struct alignas(64) Member {
  Counter ready;    // chunks whose data lies in the slot
  Counter reduced;  // chunks whose part of the sum lies in the slot
  Counter done;     // chunks for which the others' slots are no longer read
  Post posts[2];    // the call this rank is in and the one before
};

struct Record {
  Post post;
  uint64_t letter;  // number of the sender's letter that holds the message; 0: the message is inline
  int64_t letter_bytes;
  int32_t fd;
  std::byte data[kInlineBytes];
};

struct alignas(64) Mailbox {
  Counter sent, read;
  Record records[kRecords];
};

// At the start of a letter, memory of a sender that carries one message at a time.
struct alignas(64) LetterHead {
  Futex unread;
};

}  // namespace cleave::comm::shm
