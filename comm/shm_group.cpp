#include "comm/shm_group.h"

#include <linux/futex.h>
#include <poll.h>
#include <signal.h>
#include <sys/pidfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "comm/reduce.h"

namespace cleave {

namespace {

constexpr size_t kSlotBytes = 512 << 10;
constexpr size_t kPage = 4096;
constexpr int64_t kInlineBytes = 1024;  // of a message that travels in its record
constexpr uint32_t kRecords = 256;      // messages under way from one rank to another
constexpr int64_t kDirectBytes = 16 << 10;
constexpr auto kSpin = std::chrono::microseconds(40);
constexpr auto kNap = std::chrono::milliseconds(20);  // between two looks at whether the others are alive

using Counter = std::atomic<uint32_t>;
static_assert(Counter::is_always_lock_free);

// Counters wrap: b is at or after a.
bool reached(uint32_t b, uint32_t a) { return int32_t(b - a) >= 0; }

void futex_wait(Counter& word, uint32_t value) {
  const timespec limit{0, std::chrono::nanoseconds(kNap).count()};
  syscall(SYS_futex, &word, FUTEX_WAIT, value, &limit, nullptr, 0);
}

void copy_bytes(void* to, const void* from, int64_t bytes) { std::memcpy(to, from, size_t(bytes)); }

}  // namespace

struct alignas(64) ShmGroup::Header {
  Counter bell;  // rung when a counter moved and somebody sleeps
  Counter sleepers;
  Counter poisoned;  // 1 while the reason is being written, then 2
  char reason[1024];
};

struct alignas(64) ShmGroup::Member {
  Counter ready;    // chunks whose data lies in the slot
  Counter reduced;  // chunks whose part of the sum lies in the slot
  Counter done;     // chunks for which the others' slots are no longer read
  Post posts[2];    // the call this rank is in and the one before
};

struct ShmGroup::Record {
  Post post;
  uint64_t letter;  // 0: the message is inline
  int64_t capacity;
  int32_t fd;
  std::byte data[kInlineBytes];
};

struct alignas(64) ShmGroup::Mailbox {
  Counter sent, read;
  Record records[kRecords];
};

struct ShmGroup::Letter {
  uint64_t number;
  SharedMemory
      memory;  // a Counter that is 1 while the message is unread, padded to 64 bytes, then the message
  Counter& unread() const { return *reinterpret_cast<Counter*>(memory.data()); }
  int64_t capacity() const { return int64_t(memory.bytes()) - 64; }
};

size_t ShmGroup::bytes_needed(int size) {
  const size_t n = size_t(size);
  const size_t control = sizeof(Header) + n * sizeof(Member) + n * n * sizeof(Mailbox);
  return (control + kPage - 1) / kPage * kPage + n * 2 * kSlotBytes;
}

ShmGroup::ShmGroup(Members members, SharedMemory memory, CommOptions options)
    : members_(std::move(members)), memory_(std::move(memory)), options_(options) {
  for (int pid : members_.pids) pidfds_.push_back(pid == getpid() ? -1 : pidfd_open(pid, 0));
}

ShmGroup::~ShmGroup() {
  // A receiver opens a letter through this process: wait until all are read, unless nobody will read them.
  const auto until = Clock::now() + std::min<Clock::duration>(options_.timeout, std::chrono::seconds(10));
  const auto unread = [&] {
    return std::any_of(letters_.begin(), letters_.end(),
                       [](const Letter& l) { return l.unread().load() != 0; });
  };
  const auto anybody = [&] {
    for (int r = 0; r < size(); ++r)
      if (r != rank() && !is_gone(r)) return true;
    return false;
  };
  while (unread() && !header().poisoned.load() && anybody() && Clock::now() < until)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  for (int fd : pidfds_)
    if (fd >= 0) close(fd);
}

ShmGroup::Header& ShmGroup::header() const { return *reinterpret_cast<Header*>(memory_.data()); }

ShmGroup::Member& ShmGroup::member(int rank) const {
  return reinterpret_cast<Member*>(memory_.data() + sizeof(Header))[rank];
}

ShmGroup::Mailbox& ShmGroup::mailbox(int from, int to) const {
  std::byte* first = memory_.data() + sizeof(Header) + size_t(size()) * sizeof(Member);
  return reinterpret_cast<Mailbox*>(first)[from * size() + to];
}

std::byte* ShmGroup::slot(int rank) const {
  std::byte* end = memory_.data() + memory_.bytes();
  return end - (size_t(size() - rank) * 2 - chunk_ % 2) * kSlotBytes;
}

void ShmGroup::wake() {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (header().sleepers.load() == 0) return;
  header().bell.fetch_add(1);
  syscall(SYS_futex, &header().bell, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
}

template <class Here>
void ShmGroup::await(const Waiting& w, Here here) {
  const auto all = [&] {
    for (int r = 0; r < size(); ++r)
      if (!here(r)) return false;
    return true;
  };
  if (all()) return;
  const auto start = Clock::now();
  do {
    for (int i = 0; i < 32; ++i) {
      if (all()) return;
      _mm_pause();
    }
  } while (Clock::now() - start < kSpin);

  for (;;) {
    header().sleepers.fetch_add(1);
    const uint32_t rung = header().bell.load();
    if (!all() && !header().poisoned.load()) futex_wait(header().bell, rung);
    header().sleepers.fetch_sub(1);
    if (all()) return;
    throw_if_poisoned(w);
    std::vector<bool> present;
    for (int r = 0; r < size(); ++r) present.push_back(here(r));
    throw_if_gone(w, present);
    if (Clock::now() - start >= options_.timeout) give_up(w, deadline_report(w, present, options_.timeout));
  }
}

bool ShmGroup::is_gone(int r) const {
  const int fd = pidfds_[size_t(r)];
  if (fd < 0)
    return members_.pids[size_t(r)] != getpid() && kill(members_.pids[size_t(r)], 0) != 0 && errno == ESRCH;
  pollfd p{fd, POLLIN, 0};
  return poll(&p, 1, 0) == 1;
}

void ShmGroup::throw_if_gone(const Waiting& w, const std::vector<bool>& present) {
  for (int r = 0; r < size(); ++r)
    if (!present[size_t(r)] && is_gone(r))
      give_up(w, fmt::format("{}: rank {} (pid {}) went away", describe(w), members_.ranks[size_t(r)],
                             members_.pids[size_t(r)]));
}

void ShmGroup::give_up(const Waiting& w, const std::string& report) {
  poison(report);
  // Somebody may have been first, with a better reason.
  if (header().reason != report.substr(0, sizeof(Header::reason) - 1)) throw_if_poisoned(w);
  fail(Exit::rank_lost, "{}", report);
}

void ShmGroup::throw_if_poisoned(const Waiting& w) const {
  if (header().poisoned.load() == 0) return;
  for (int i = 0; i < 100 && header().poisoned.load() != 2; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  fail(Exit::rank_lost, "{} was given up: {}", describe(w), header().reason);
}

void ShmGroup::poison(const std::string& reason) {
  uint32_t none = 0;
  if (header().poisoned.compare_exchange_strong(none, 1)) {
    reason.copy(header().reason, sizeof(Header::reason) - 1);
    header().poisoned.store(2);
  }
  wake();
}

void ShmGroup::stuck_in_line(const Waiting& w) {
  throw_if_poisoned(w);
  give_up(w, describe(w) + ": an earlier call of this group on this rank did not end in time");
}

void ShmGroup::begin_call(const Waiting& w) {
  throw_if_poisoned(w);
  ++call_;
  first_chunk_ = true;
  begin_chunk(w);
  // begin_chunk has seen everybody past the chunk in which the post of two calls ago was compared.
  member(rank()).posts[call_ % 2] = w.post;
}

// A slot may be filled when everybody is done with what it held two chunks ago.
void ShmGroup::begin_chunk(const Waiting& w) {
  ++chunk_;
  await(w, [this](int r) { return reached(member(r).done.load(std::memory_order_acquire), chunk_ - 2); });
}

void ShmGroup::publish_and_await_all(const Waiting& w) {
  member(rank()).ready.store(chunk_, std::memory_order_release);
  wake();
  await(w, [this](int r) { return reached(member(r).ready.load(std::memory_order_acquire), chunk_); });
  if (!std::exchange(first_chunk_, false)) return;
  for (int r = 0; r < size(); ++r) compare(w, r);
}

void ShmGroup::compare(const Waiting& w, int other) {
  const Post& post = member(other).posts[call_ % 2];
  if (post == w.post) return;
  const std::string report = mismatch_report(w, other, post);
  poison(report);
  fail(Exit::internal, "{}", report);
}

void ShmGroup::end_chunk() {
  member(rank()).done.store(chunk_, std::memory_order_release);
  wake();
}

// Calls body(piece) for the chunks of `range`; the caller has begun the first.
template <class Next, class Body>
static void in_chunks(Range range, int64_t most, Next next, Body body) {
  for (int64_t begin = range.begin; begin < range.end; begin += most) {
    if (begin != range.begin) next();
    body(Range{begin, std::min(range.end, begin + most)});
  }
}

void ShmGroup::all_gather(const Waiting& w, Tensor full, Tensor shard, Range piece) {
  begin_call(w);
  const int64_t most = int64_t(kSlotBytes) / size_of(full.dtype());
  in_chunks(
      piece, most, [&] { begin_chunk(w); },
      [&](Range c) {
        const Tensor from = shard.slice(c);
        copy_bytes(slot(rank()), from.raw(), from.bytes());
        publish_and_await_all(w);
        for (int r = 0; r < size(); ++r) {
          const Tensor to = full.slice(c.shifted(r * shard.numel()));
          if (r != rank())
            copy_bytes(to.raw(), slot(r), to.bytes());
          else if (to.raw() != from.raw())
            copy_bytes(to.raw(), from.raw(), to.bytes());
        }
        end_chunk();
      });
}

void ShmGroup::reduce_scatter(const Waiting& w, Tensor shard, Tensor full, Range piece) {
  begin_call(w);
  const int64_t element = size_of(full.dtype());
  const int64_t most = int64_t(kSlotBytes) / size() / 64 * 64 / element;
  in_chunks(
      piece, most, [&] { begin_chunk(w); },
      [&](Range c) {
        for (int r = 0; r < size(); ++r) {
          const Tensor from = full.slice(c.shifted(r * shard.numel()));
          if (r != rank()) copy_bytes(slot(rank()) + r * most * element, from.raw(), from.bytes());
        }
        publish_and_await_all(w);
        std::vector<const std::byte*> sources;
        for (int r = 0; r < size(); ++r) sources.push_back(slot(r) + rank() * most * element);
        sources[size_t(rank())] =
            static_cast<std::byte*>(full.slice(c.shifted(rank() * shard.numel())).raw());
        sum_in_order(full.dtype(), shard.slice(c).raw(), sources, c.size());
        end_chunk();
      });
}

void ShmGroup::all_reduce(const Waiting& w, Tensor t) {
  begin_call(w);
  const int64_t most = int64_t(kSlotBytes) / size_of(t.dtype());
  in_chunks(
      {0, t.numel()}, most, [&] { begin_chunk(w); }, [&](Range c) { all_reduce_chunk(w, t.slice(c)); });
}

void ShmGroup::all_reduce_chunk(const Waiting& w, Tensor t) {
  copy_bytes(slot(rank()), t.raw(), t.bytes());
  publish_and_await_all(w);
  // Two ranks, or little data: everybody adds everything, which saves a wait and a copy.
  const bool direct = size() == 2 || t.bytes() <= kDirectBytes;
  const Range mine = direct ? Range{0, t.numel()} : part(t.numel(), size(), rank());
  const int64_t element = size_of(t.dtype());
  std::vector<const std::byte*> sources;
  for (int r = 0; r < size(); ++r) sources.push_back(slot(r) + mine.begin * element);
  const Tensor sum = t.slice(mine);
  sources[size_t(rank())] = static_cast<std::byte*>(sum.raw());
  sum_in_order(t.dtype(), sum.raw(), sources, mine.size());
  if (direct) return end_chunk();

  // Nobody else reads this part of this rank's slot before the sum is in it.
  copy_bytes(slot(rank()) + mine.begin * element, sum.raw(), sum.bytes());
  member(rank()).reduced.store(chunk_, std::memory_order_release);
  wake();
  await(w, [this](int r) { return reached(member(r).reduced.load(std::memory_order_acquire), chunk_); });
  for (int r = 0; r < size(); ++r) {
    const Tensor to = t.slice(part(t.numel(), size(), r));
    if (r != rank()) copy_bytes(to.raw(), slot(r) + part(t.numel(), size(), r).begin * element, to.bytes());
  }
  end_chunk();
}

void ShmGroup::broadcast(const Waiting& w, Tensor t, int root) {
  begin_call(w);
  const int64_t most = int64_t(kSlotBytes) / size_of(t.dtype());
  in_chunks(
      {0, t.numel()}, most, [&] { begin_chunk(w); },
      [&](Range c) {
        const Tensor here = t.slice(c);
        if (rank() == root) copy_bytes(slot(root), here.raw(), here.bytes());
        member(rank()).ready.store(chunk_, std::memory_order_release);
        wake();
        await(w, [&](int r) {
          return r != root || reached(member(r).ready.load(std::memory_order_acquire), chunk_);
        });
        if (std::exchange(first_chunk_, false)) compare(w, root);
        if (rank() != root) copy_bytes(here.raw(), slot(root), here.bytes());
        end_chunk();
      });
}

void ShmGroup::barrier(const Waiting& w) {
  begin_call(w);
  publish_and_await_all(w);
  end_chunk();
}

std::vector<int64_t> ShmGroup::exchange(const Waiting& w, int64_t mine) {
  std::vector<int64_t> all(static_cast<size_t>(size()));
  all_gather(w, Tensor(all.data(), DType::int64, {size()}), Tensor(&mine, DType::int64, {1}), {0, 1});
  return all;
}

}  // namespace cleave
