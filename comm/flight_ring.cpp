#include "comm/flight_ring.h"

#include <algorithm>
#include <chrono>
#include <cstring>

namespace cleave::comm {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
// Instead of fences, which ThreadSanitizer does not understand: stores of an entry stay behind that of its
// ticket 0, and loads before the second one of its ticket.
constexpr auto kRelease = std::memory_order_release, kAcquire = std::memory_order_acquire;

uint64_t packed(const Post& post) {
  return uint64_t(post.op) | uint64_t(post.dtype) << 8 | uint64_t(post.by) << 16 |
         uint64_t(uint32_t(post.peer)) << 32;
}

Post unpacked(uint64_t kinds, int64_t numel) {
  return {Collective(uint8_t(kinds)), DType(uint8_t(kinds >> 8)), int32_t(kinds >> 32), numel,
          Reduction(uint8_t(kinds >> 16))};
}

// Phases are literals with different first letters.
FlightRing::Phase phase_of(const char* phase) {
  switch (*phase) {
    case 'f':
      return FlightRing::Phase::forward;
    case 'b':
      return FlightRing::Phase::backward;
    case 'u':
      return FlightRing::Phase::update;
    default:
      return FlightRing::Phase::other;
  }
}

bool is_message(Collective op) { return op == Collective::send || op == Collective::recv; }

}  // namespace

int64_t FlightRing::now_ns() {
  return std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count();
}

int FlightRing::join(const std::string& name, const std::vector<int>& ranks) {
  const std::lock_guard lock(joining_);
  const auto at = std::find_if(owned_.begin(), owned_.end(),
                               [&](const auto& g) { return g->name == name && g->ranks == ranks; });
  if (at != owned_.end()) return int(at - owned_.begin());
  if (owned_.size() == size_t(kGroups)) return -1;
  owned_.push_back(std::make_unique<GroupFacts>());
  owned_.back()->name = name, owned_.back()->ranks = ranks;
  groups_[owned_.size() - 1].store(owned_.back().get(), std::memory_order_release);
  return int(owned_.size()) - 1;
}

void FlightRing::write_text(Entry& entry, std::string_view what) {
  for (size_t w = 0; w < kWords; ++w) {
    uint64_t word = 0;
    const size_t at = w * sizeof(word);
    if (at < what.size()) std::memcpy(&word, what.data() + at, std::min(sizeof(word), what.size() - at));
    entry.text[w].store(word, kRelease);
  }
}

uint64_t FlightRing::enter(const FlightCall& call, int64_t entered_ns) {
  const uint64_t ticket = made_.fetch_add(1, std::memory_order_acq_rel) + 1;
  Entry& e = entries_[ticket % kCalls];
  // A thread that was interrupted here for kCalls calls still writes its own: this one is not kept.
  if (!e.busy.exchange(true, kAcquire)) {
    e.ticket.store(0, kRelaxed);
    e.kinds.store(packed(call.post), kRelease);
    e.number.store(call.number, kRelease);
    e.numel.store(call.post.numel, kRelease);
    e.queued.store(call.queued_ns, kRelease);
    e.entered.store(entered_ns, kRelease);
    e.finished.store(0, kRelease);
    e.group.store(call.group, kRelease);
    e.phase.store(call.phase, kRelease);
    write_text(e, call.what);
    e.ticket.store(ticket, std::memory_order_release);
    e.busy.store(false, kRelease);
  }
  if (call.group >= 0 && !is_message(call.post.op))
    groups_[call.group].load(kRelaxed)->entered.store(call.number, kRelaxed);
  return ticket;
}

void FlightRing::finish(uint64_t ticket, int64_t finished_ns) {
  Entry& e = entries_[ticket % kCalls];
  if (e.ticket.load(std::memory_order_acquire) != ticket) return;
  e.finished.store(finished_ns, kRelaxed);
  times_[size_t(phase_of(e.phase.load(kRelaxed)))].fetch_add(finished_ns - e.entered.load(kRelaxed),
                                                             kRelaxed);
  const int group = e.group.load(kRelaxed);
  if (group >= 0 && !is_message(Collective(uint8_t(e.kinds.load(kRelaxed)))))
    groups_[group].load(kRelaxed)->done.store(e.number.load(kRelaxed), kRelaxed);
}

bool FlightRing::read(uint64_t ticket, Seen& seen) const {
  const Entry& e = entries_[ticket % kCalls];
  if (ticket == 0 || e.ticket.load(std::memory_order_acquire) != ticket) return false;
  for (size_t w = 0; w < kWords; ++w) {
    const uint64_t word = e.text[w].load(kAcquire);
    std::memcpy(seen.text + w * sizeof(word), &word, sizeof(word));
  }
  seen.call = {e.group.load(kAcquire),
               e.number.load(kAcquire),
               unpacked(e.kinds.load(kAcquire), e.numel.load(kAcquire)),
               {seen.text, strnlen(seen.text, sizeof(seen.text))},
               e.phase.load(kAcquire),
               e.queued.load(kAcquire)};
  seen.entered_ns = e.entered.load(kAcquire), seen.finished_ns = e.finished.load(kAcquire);
  return e.ticket.load(kRelaxed) == ticket;
}

}  // namespace cleave::comm
