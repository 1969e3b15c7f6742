#include "comm/cuda/flights.h"

#include <atomic>
#include <cstring>
#include <thread>
#include <utility>

#include "core/phase.h"
#include "device/cuda/check.h"
#include "device/cuda/lost.h"
#include "device/cuda/words.h"

namespace cleave::comm {
namespace {

using namespace std::chrono_literals;

constexpr size_t kPage = 4096;
constexpr int kPagesAtOnce = 64;
constexpr int kSlots = int(kPage / sizeof(uint32_t) / 2);

// Pages for words that GPUs write. CUDA may wait for the whole GPU to allocate or free memory, and thus for a
// rank that waits for the link being opened: many links share one allocation, which is never freed.
class Pages {
 public:
  uint32_t* take(int device) {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) {
      cuda_check(cudaSetDevice(device), "cudaSetDevice", device);
      void* block = nullptr;
      cuda_check(cudaHostAlloc(&block, kPage * kPagesAtOnce, cudaHostAllocPortable), "cudaHostAlloc", device);
      for (int i = 0; i < kPagesAtOnce; ++i)
        free_.push_back(static_cast<uint32_t*>(block) + i * (kPage / sizeof(uint32_t)));
    }
    uint32_t* page = free_.back();
    free_.pop_back();
    std::memset(page, 0, kPage);
    return page;
  }
  void give_back(uint32_t* page) {
    const std::lock_guard lock(mutex_);
    free_.push_back(page);
  }

 private:
  std::mutex mutex_;
  std::vector<uint32_t*> free_;
};

Pages& pages() {
  static auto* const all = new Pages;
  return *all;
}

}  // namespace

Flights::Flights(Group& group, int rank, int device)
    : group_(group),
      rank_(rank),
      device_(device),
      ring_(group.options().flights),
      ring_group_(ring_ ? ring_->join(group.name(), group.ranks()) : -1),
      words_(pages().take(device)),
      in_slot_(kSlots, 0) {
  for (int slot = kSlots; slot-- > 0;) free_.push_back(slot);
}

// The GPU may still write the words of calls in flight.
Flights::~Flights() {
  if (all_done()) pages().give_back(words_);
}

std::optional<int> Flights::take_slot(const Waiting& w, uint32_t tag) {
  const std::lock_guard lock(mutex_);
  land_finished();
  if (free_.empty()) return std::nullopt;
  const int slot = free_.back();
  free_.pop_back();
  ++in_slot_[size_t(slot)];
  flights_.push_back({w.number,
                      w.what,
                      w.post,
                      tag,
                      slot,
                      true,
                      {},
                      {},
                      PhaseMark::current(),
                      ring_ ? FlightRing::now_ns() : 0});
  return slot;
}

void Flights::begin(const Waiting& w, cudaStream_t stream, uint32_t tag) {
  std::optional<int> slot;
  while (!(slot = take_slot(w, tag))) {
    cuda_check(known_loss(device_), "work between GPUs", device_);
    std::this_thread::sleep_for(50us);
  }
  launching_ = *slot;
  write_word(stream, begun(launching_), in_slot_[size_t(launching_)], device_);
}

void Flights::end(cudaStream_t stream) {
  write_word(stream, ended(launching_), in_slot_[size_t(launching_)], device_);
  const std::lock_guard lock(mutex_);
  flights_.back().growing = false;
}

bool Flights::passed(const uint32_t* word, int slot) const {
  return std::atomic_ref(*const_cast<uint32_t*>(word)).load(std::memory_order_acquire) ==
         in_slot_[size_t(slot)];
}

// The ring has its time at which the host sees the GPU in a call, because the ring could not hold all calls
// that are enqueued ahead.
void Flights::record(Flight& f) {
  if (ring_ && f.ticket == 0)
    f.ticket = ring_->enter({ring_group_, f.number, f.post, f.what, f.phase, f.queued_ns});
}

// Calls of one link complete in order.
void Flights::land_finished() {
  while (!flights_.empty() && !flights_.front().growing &&
         passed(ended(flights_.front().slot), flights_.front().slot)) {
    record(flights_.front());
    if (ring_) ring_->finish(flights_.front().ticket);
    free_.push_back(flights_.front().slot);
    flights_.pop_front();
  }
}

bool Flights::all_done() {
  const std::lock_guard lock(mutex_);
  land_finished();
  return flights_.empty();
}

Waiting Flights::waiting(const Flight& f) const {
  return {group_.name(), group_.ranks(), rank_, f.number, f.what, f.post};
}

std::string Flights::compare_slow(Clock::duration least,
                                  const std::function<std::string(const Waiting&)>& body) {
  const auto now = Clock::now();
  Flight slow;
  {
    const std::lock_guard lock(mutex_);
    if (flights_.empty() || now - compared_ < least) return {};
    const Flight& f = flights_.front();
    const bool message = f.post.op == Collective::send || f.post.op == Collective::recv;
    if (message || !f.since || now - *f.since < least) return {};
    compared_ = now, slow = f;
  }
  return body(waiting(slow));
}

std::string Flights::report(const std::string& why) {
  const std::lock_guard lock(mutex_);
  if (flights_.empty()) return fmt::format("group '{}': {}", group_.name(), why);
  return fmt::format("{}: {}", describe(waiting(flights_.front())), why);
}

std::string Flights::trouble(const std::function<std::string(const Waiting&, const Flight&)>& late) {
  Flight first;
  const auto now = Clock::now();
  {
    const std::lock_guard lock(mutex_);
    land_finished();
    if (flights_.empty()) return {};
    Flight& f = flights_.front();
    if (!f.seen) f.seen = now;
    if (!f.since && passed(begun(f.slot), f.slot)) f.since = now, record(f);
    first = f;
  }
  // A lost GPU writes no words.
  if (now - *first.seen > 1s)
    if (const cudaError_t lost = known_loss(device_); lost != cudaSuccess)
      return report(fmt::format("cuda:{} failed: {}", device_, cudaGetErrorString(lost)));
  if (!first.since || now - *first.since < group_.options().timeout) return {};
  return late(waiting(first), first);
}

}  // namespace cleave::comm
