// Messages between two ranks: a record in the pair's mailbox, and the data in a letter, memory that the
// sender owns and reuses after the receiver has read it. A send therefore does not wait for its receiver,
// unless kRecords messages are in transit.
#include <algorithm>
#include <cstring>

#include "comm/shm/shm_group.h"
#include "core/error.h"

namespace cleave::comm {

using namespace shm;

void ShmGroup::send(const Waiting& w, Tensor t, int to) {
  throw_if_poisoned(w);
  Mailbox& box = mailbox(rank_, to);
  const uint64_t number = box.sent.load();
  await(w, [&](int r) { return r != to || number - box.read.load() < kRecords; });
  Record& record = box.records[number % kRecords];
  record.post = w.post;
  record.letter = 0;
  if (t.bytes() <= kInlineBytes) {
    std::memcpy(record.data, t.raw(), size_t(t.bytes()));
  } else {
    Letter& letter = free_letter(t.bytes());
    record.letter = letter.number;
    record.letter_bytes = int64_t(letter.memory.bytes());
    record.fd = letter.memory.fd();
    std::memcpy(letter.text(), t.raw(), size_t(t.bytes()));
  }
  box.sent.store(number + 1);
  wake();
}

void ShmGroup::recv(const Waiting& w, Tensor t, int from) {
  throw_if_poisoned(w);
  Mailbox& box = mailbox(from, rank_);
  const uint64_t number = box.read.load();
  await(w, [&](int r) { return r != from || box.sent.load() > number; });
  const Record& record = box.records[number % kRecords];
  if (record.post.numel != w.post.numel || record.post.dtype != w.post.dtype)
    give_up(w, mismatch_report(w, from, record.post), Exit::internal);
  if (record.letter == 0) {
    CHECK(t.bytes() <= kInlineBytes, "shared memory: a message of {} bytes arrived without its header",
          t.bytes());
    std::memcpy(t.raw(), record.data, size_t(t.bytes()));
  } else {
    SharedMemory& letter = letter_of(from, record);
    CHECK(letter.bytes() >= sizeof(LetterHead) + size_t(t.bytes()),
          "shared memory: a message of {} bytes arrived with a header of {}", t.bytes(), letter.bytes());
    std::memcpy(t.raw(), letter.data() + sizeof(LetterHead), size_t(t.bytes()));
    reinterpret_cast<LetterHead*>(letter.data())->unread.store(0);
  }
  box.read.store(number + 1);
  wake();
}

// Smallest free letter that is large enough, else a new one; marked unread.
ShmGroup::Letter& ShmGroup::free_letter(int64_t bytes) {
  std::lock_guard lock(letters_mutex_);
  Letter* best = nullptr;
  for (Letter& l : letters_)
    if (l.head().unread.load() == 0 && l.capacity() >= bytes && (!best || l.capacity() < best->capacity()))
      best = &l;
  if (!best) {
    const size_t whole = size_t(round_up(bytes + int64_t(sizeof(LetterHead)), 64 << 10));
    best = &letters_.emplace_back(Letter{letters_.size() + 1, SharedMemory::create(whole)});
  }
  best->head().unread.store(1);
  return *best;
}

SharedMemory& ShmGroup::letter_of(int from, const Record& record) {
  std::lock_guard lock(letters_mutex_);
  SharedMemory& letter = opened_[{from, record.letter}];
  if (!letter.data()) {
    letter = SharedMemory::open(pids_[size_t(from)], record.fd, size_t(record.letter_bytes));
    letter.close_fd();
  }
  return letter;
}

}  // namespace cleave::comm
