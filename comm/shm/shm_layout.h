// Layout of a group's shared memory on one host: a header, one entry per rank, a mailbox per pair, and two
// slots per rank for data of collectives.
#pragma once
#include <atomic>
#include <cstdint>

#include "comm/post_board.h"

namespace cleave::comm::shm {

using Counter = std::atomic<uint64_t>;
using Futex = std::atomic<uint32_t>;
static_assert(Counter::is_always_lock_free && Futex::is_always_lock_free);

inline constexpr size_t kSlotBytes = 512 << 10;  // a rank's chunk and its neighbor's fit in the L2 cache
inline constexpr size_t kPage = 4096;
inline constexpr int64_t kInlineBytes = 1024;  // of a message inside its record
inline constexpr uint64_t kRecords = 256;      // messages in transit per pair

struct alignas(64) Header {
  Futex bell;  // futex for sleepers; incremented on changes
  Futex sleepers;
  Futex poisoned;  // 1 while the reason is being written, then 2
  char reason[1024];
};

struct alignas(64) Member {
  Counter ready;    // chunks with data in the slot
  Counter reduced;  // chunks with this rank's part of the sum in the slot
  Counter done;     // chunks that this rank no longer reads in other slots
  Post posts[2];    // this rank's current and previous call
  PostBoard waits;  // call of another transport
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

// Header of a letter: memory of a sender that carries one message at a time.
struct alignas(64) LetterHead {
  Futex unread;
};

}  // namespace cleave::comm::shm
