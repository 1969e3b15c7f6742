#include "runtime/step/state_copies.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "core/error.h"
#include "core/range.h"

namespace cleave::runtime {
namespace {

constexpr int64_t kAlign = 4096;

}  // namespace

struct StateCopies::Slot {
  // 1 + step; 0: incomplete, as in new memory. Written last, so that a kill at any time leaves it right.
  std::atomic<int64_t> step_and_one;
  int64_t whole;  // 1 after the first complete copy
  int64_t text_bytes;
  char text[kTextBytes];
};

struct StateCopies::Header {
  int64_t state_bytes;
  Slot slots[kCopies];
};
static_assert(std::atomic<int64_t>::is_always_lock_free);  // shared by processes

int64_t newest_common_step(std::span<const int64_t> steps) {
  constexpr auto kEach = size_t(StateCopies::kCopies);
  int64_t newest = -1;
  for (const int64_t step : steps.first(kEach)) {
    bool common = true;
    for (size_t rank = 0; rank < steps.size(); rank += kEach)
      common = common && std::ranges::count(steps.subspan(rank, kEach), step) > 0;
    if (common) newest = std::max(newest, step);
  }
  return newest;
}

StateCopies::StateCopies(comm::SharedMemory earlier) : memory_(std::move(earlier)) {}

int64_t StateCopies::bytes_for(int64_t state_bytes) {
  return round_up(int64_t(sizeof(Header)), kAlign) + kCopies * round_up(state_bytes, kAlign);
}

void StateCopies::open(int64_t state_bytes) {
  const int64_t bytes = bytes_for(state_bytes);
  if (!is_open()) {
    memory_ = comm::SharedMemory::create(size_t(bytes));
    // Touches all pages, so that the first steps do not wait for the system to provide them.
    std::memset(memory_.data(), 0, memory_.bytes());
    header().state_bytes = state_bytes;
  }
  require(int64_t(memory_.bytes()) == bytes && header().state_bytes == state_bytes, Exit::internal,
          "copy of the state in memory: has another size (got {} bytes, expected {})", header().state_bytes,
          state_bytes);
}

Tensor StateCopies::bytes() const {
  return Tensor(memory_.data(), DType::uint8, {int64_t(memory_.bytes())}, MemoryKind::host);
}

StateCopies::Header& StateCopies::header() const { return *reinterpret_cast<Header*>(memory_.data()); }

StateCopies::Slot& StateCopies::slot(int64_t step) const { return header().slots[step % kCopies]; }

std::byte* StateCopies::state(const Slot& of) const {
  return memory_.data() + round_up(int64_t(sizeof(Header)), kAlign) +
         (&of - header().slots) * round_up(header().state_bytes, kAlign);
}

std::array<int64_t, StateCopies::kCopies> StateCopies::steps() const {
  std::array<int64_t, kCopies> steps{};
  for (int i = 0; i < kCopies; ++i)
    steps[size_t(i)] = is_open() ? header().slots[i].step_and_one.load(std::memory_order_acquire) - 1 : -1;
  return steps;
}

int64_t StateCopies::newest() const { return std::ranges::max(steps()); }

StateCopies::Copy StateCopies::begin(int64_t step) {
  Slot& to = slot(step);
  // Ordered before the writes of the state that follow.
  to.step_and_one.exchange(0, std::memory_order_acq_rel);
  return {state(to), to.whole != 0};
}

void StateCopies::end(int64_t step, const std::string& text) {
  Slot& to = slot(step);
  require(text.size() <= kTextBytes, Exit::internal,
          "copy of the state in memory: its description is too long (got {} bytes, expected at most {})",
          text.size(), kTextBytes);
  to.text_bytes = int64_t(text.size());
  std::memcpy(to.text, text.data(), text.size());
  to.whole = 1;
  to.step_and_one.store(step + 1, std::memory_order_release);
}

const std::byte* StateCopies::state_of(int64_t step) const {
  const Slot& of = slot(step);
  CHECK(of.step_and_one.load(std::memory_order_acquire) == step + 1, "no complete copy of step {}", step);
  return state(of);
}

std::string StateCopies::text_of(int64_t step) const {
  const Slot& of = slot(step);
  return {of.text, size_t(of.text_bytes)};
}

}  // namespace cleave::runtime
