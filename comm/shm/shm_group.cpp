#include "comm/shm/shm_group.h"

#include <linux/futex.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "comm/from_peer.h"

namespace cleave::comm {

using namespace shm;

namespace {

constexpr auto kSpin = std::chrono::microseconds(40);
constexpr auto kPatience = std::chrono::milliseconds(500);
constexpr auto kNap = std::chrono::milliseconds(20);  // interval of liveness checks

void futex_wait(Futex& word, uint32_t value) {
  const timespec limit{0, std::chrono::nanoseconds(kNap).count()};
  syscall(SYS_futex, &word, FUTEX_WAIT, value, &limit, nullptr, 0);
}

}  // namespace

size_t ShmGroup::bytes_needed(int size) {
  const size_t n = size_t(size);
  const size_t control = sizeof(Header) + n * sizeof(Member) + n * n * sizeof(Mailbox);
  return (control + kPage - 1) / kPage * kPage + n * 2 * kSlotBytes;
}

ShmGroup::ShmGroup(Members members, SharedMemory memory, CommOptions options, std::shared_ptr<Alarm> alarm)
    : Group(std::move(members.name), std::move(members.ranks), options),
      rank_(members.rank),
      pids_(std::move(members.pids)),
      memory_(std::move(memory)),
      alarm_(std::move(alarm)) {
  for (int pid : pids_) pidfds_.push_back(pid == getpid() ? -1 : int(syscall(SYS_pidfd_open, pid, 0)));
  alarm_->add(this);
}

ShmGroup::~ShmGroup() {
  alarm_->remove(this);
  // Receivers open letters through this process: waits until all are read, unless no rank is left to read
  // them.
  const auto until = Clock::now() + std::min<Clock::duration>(options().timeout, std::chrono::seconds(10));
  const auto unread = [&] {
    return std::any_of(letters_.begin(), letters_.end(),
                       [](const Letter& l) { return l.head().unread.load() != 0; });
  };
  const auto anybody = [&] {
    for (int r = 0; r < size(); ++r)
      if (r != rank_ && !is_gone(r)) return true;
    return false;
  };
  while (unread() && !header().poisoned.load() && anybody() && Clock::now() < until)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  for (int fd : pidfds_)
    if (fd >= 0) close(fd);
}

shm::Header& ShmGroup::header() const { return *reinterpret_cast<Header*>(memory_.data()); }

Member& ShmGroup::member(int rank) const {
  return reinterpret_cast<Member*>(memory_.data() + sizeof(Header))[rank];
}

Mailbox& ShmGroup::mailbox(int from, int to) const {
  std::byte* first = memory_.data() + sizeof(Header) + size_t(size()) * sizeof(Member);
  return reinterpret_cast<Mailbox*>(first)[from * size() + to];
}

std::byte* ShmGroup::slot(int rank) const {
  std::byte* end = memory_.data() + memory_.bytes();
  return end - (size_t(size() - rank) * 2 - chunk_ % 2) * kSlotBytes;
}

void ShmGroup::wake() {
  // A waiter increments `sleepers` before it reads the counters; this thread reads `sleepers` after it
  // changed the counters. All accesses are sequentially consistent, so one of the two sees the other's
  // change.
  if (header().sleepers.load() == 0) return;
  header().bell.fetch_add(1);
  syscall(SYS_futex, &header().bell, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
}

void ShmGroup::await_slowly(const Waiting& w, const std::function<bool(int)>& here) {
  const auto all = [&] {
    for (int r = 0; r < size(); ++r)
      if (!here(r)) return false;
    return true;
  };
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
    throw_if_gone(w, here);
    if (Clock::now() - start < options().timeout) continue;
    std::vector<bool> present;
    for (int r = 0; r < size(); ++r) present.push_back(here(r));
    give_up(w, deadline_report(w, present, options().timeout), Exit::rank_lost);
  }
}

bool ShmGroup::is_gone(int r) const {
  const int fd = pidfds_[size_t(r)];
  if (fd < 0) return pids_[size_t(r)] != getpid() && kill(pids_[size_t(r)], 0) != 0 && errno == ESRCH;
  pollfd p{fd, POLLIN, 0};
  return poll(&p, 1, 0) == 1;
}

void ShmGroup::throw_if_gone(const Waiting& w, const std::function<bool(int)>& here) {
  for (int r = 0; r < size(); ++r) {
    if (here(r) || !is_gone(r) || here(r)) continue;  // it may have left after it arrived
    // A failed rank reports its reason through the rendezvous, possibly later than its process ends.
    const auto patience = Clock::now() + kPatience;
    while (!header().poisoned.load() && Clock::now() < patience)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const int world_rank = ranks()[size_t(r)], pid = pids_[size_t(r)];
    give_up(w, fmt::format("{}: rank {} (pid {}) ended", describe(w), world_rank, pid), Exit::rank_lost);
  }
}

void ShmGroup::give_up(const Waiting& w, const std::string& report, Exit exit) {
  if (!try_poison(report)) throw_if_poisoned(w);
  alarm_->notice(report);
  fail(exit, "{}", report);
}

void ShmGroup::throw_if_poisoned(const Waiting& w) const {
  if (header().poisoned.load() == 0) return;
  for (int i = 0; i < 100 && header().poisoned.load() != 2; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const std::string reason = text_from_peer(header().reason);
  // Reasons that a rank sent to all have this form, and the alarm handles them.
  if (reason.find(" failed: ") == std::string::npos) alarm_->notice(reason);
  fail(Exit::rank_lost, "{} was aborted: {}", describe(w), reason);
}

bool ShmGroup::try_poison(const std::string& reason) {
  uint32_t none = 0;
  const bool first = header().poisoned.compare_exchange_strong(none, 1);
  if (first) {
    reason.copy(header().reason, sizeof(Header::reason) - 1);
    header().poisoned.store(2);
  }
  wake();
  return first;
}

// Reason of a fully poisoned group; empty before the reason is written.
std::string ShmGroup::lost() const {
  return header().poisoned.load() == 2 ? text_from_peer(header().reason) : "";
}

void ShmGroup::poison(const std::string& reason) { try_poison(reason); }

void ShmGroup::abort(const std::string& reason) {
  alarm_->notice(reason);
  poison(reason);
}

void ShmGroup::begin_call(const Waiting& w) {
  throw_if_poisoned(w);
  ++call_;
  first_chunk_ = true;
  begin_chunk(w);
  // begin_chunk() returned, so every rank has finished comparing the post of two calls ago.
  member(rank_).posts[call_ % 2] = w.post;
}

// A slot may be refilled when all ranks are done with the chunk of two chunks ago.
void ShmGroup::begin_chunk(const Waiting& w) {
  ++chunk_;
  await(w, [this](int r) { return member(r).done.load() + 2 >= chunk_; });
}

void ShmGroup::publish() {
  member(rank_).ready.store(chunk_);
  wake();
}

void ShmGroup::publish_and_await_all(const Waiting& w) {
  publish();
  await(w, [this](int r) { return member(r).ready.load() >= chunk_; });
  if (!std::exchange(first_chunk_, false)) return;
  for (int r = 0; r < size(); ++r) compare(w, r);
}

void ShmGroup::compare(const Waiting& w, int other) {
  const Post& post = member(other).posts[call_ % 2];
  if (post == w.post) return;
  give_up(w, mismatch_report(w, other, post), Exit::internal);
}

std::string ShmGroup::difference(const Waiting& w) {
  member(rank_).waits.tell(w.number, w.post);
  for (int r = 0; r < size(); ++r)
    if (const auto post = member(r).waits.call(w.number); post && !(*post == w.post))
      return mismatch_report(w, r, *post);
  return {};
}

void ShmGroup::end_chunk() {
  member(rank_).done.store(chunk_);
  wake();
}

std::shared_ptr<Group> ShmGroup::form(const Waiting& w, const std::vector<int>& members,
                                      const std::string& name) {
  Members next{name, {}, {}, int(std::find(members.begin(), members.end(), rank_) - members.begin())};
  for (int m : members) {
    next.ranks.push_back(ranks()[size_t(m)]);
    next.pids.push_back(pids_[size_t(m)]);
  }
  // The first member creates the memory, and closes its descriptor after all have opened it.
  const size_t bytes = bytes_needed(int(members.size()));
  SharedMemory memory;
  if (next.rank == 0) memory = SharedMemory::create(bytes);
  const std::vector<int64_t> fds = exchange(w, memory.fd());
  if (next.rank != 0) memory = SharedMemory::open(next.pids[0], int(fds[size_t(members[0])]), bytes);
  barrier(w);
  memory.close_fd();
  return std::make_shared<ShmGroup>(std::move(next), std::move(memory), options(), alarm_);
}

}  // namespace cleave::comm
