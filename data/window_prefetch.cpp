#include "data/window_prefetch.h"

#include <algorithm>
#include <utility>

namespace cleave {

WindowPrefetch::WindowPrefetch(Windows windows, int64_t micro_batch, Rows rows)
    : windows_(windows), micro_batch_(micro_batch), rows_(std::move(rows)) {
  const size_t numel = size_t(micro_batch_ * windows_.seq_len);
  for (Slot& slot : slots_) slot.filled.input.resize(numel), slot.filled.targets.resize(numel);
}

void WindowPrefetch::fill(Slot& slot) const {
  slot.filled.valid_targets = 0;
  const int64_t seq = windows_.seq_len;
  for (int64_t row = 0; row < micro_batch_; ++row) {
    int32_t* input = slot.filled.input.data() + row * seq;
    int32_t* targets = slot.filled.targets.data() + row * seq;
    const int64_t window = rows_(slot.ordinal, row);
    if (window == kNoWindow) {
      std::fill_n(input, seq, 0);
      std::fill_n(targets, seq, kIgnoredTarget);
      continue;
    }
    windows_.read(window, input, targets);
    slot.filled.valid_targets += seq;
  }
}

void WindowPrefetch::start(Slot& slot, int64_t ordinal) {
  slot.ready.wait();  // a wrong guess may still be filling it
  slot.ordinal = ordinal;
  slot.failure = nullptr;
  worker_.enqueue([this, &slot] {
    // Kept with the slot: the stream itself would refuse all later work, also what does not touch the bad
    // tokens.
    try {
      fill(slot);
    } catch (...) {
      slot.failure = std::current_exception();
    }
  });
  slot.ready = worker_.record();
}

WindowPrefetch::Filled& WindowPrefetch::get(int64_t ordinal, int64_t following) {
  if (slots_[size_t(current_)].ordinal != ordinal) {
    current_ = 1 - current_;
    Slot& slot = slots_[size_t(current_)];
    if (slot.ordinal != ordinal) start(slot, ordinal);
  }
  Slot& slot = slots_[size_t(current_)];
  slot.ready.wait();
  if (Slot& other = slots_[size_t(1 - current_)]; other.ordinal != following && following != ordinal)
    start(other, following);
  if (slot.failure) std::rethrow_exception(slot.failure);
  return slot.filled;
}

}  // namespace cleave
