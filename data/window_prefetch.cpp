#include "data/window_prefetch.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace cleave::data {

WindowPrefetch::WindowPrefetch(const SampleOptions& samples, int64_t rows, Fill fill)
    : seq_len_(samples.seq_len), fill_(std::move(fill)) {
  const size_t numel = size_t(rows * seq_len_);
  for (Slot& slot : slots_) {
    slot.filled.input.resize(numel), slot.filled.targets.resize(numel);
    if (samples.document_mask) slot.filled.documents.resize(numel);
    slot.filled.valid_targets.resize(size_t(rows));
  }
}

int64_t WindowPrefetch::Filled::valid_in(Range rows) const {
  return std::accumulate(valid_targets.begin() + rows.begin, valid_targets.begin() + rows.end, int64_t{0});
}

void WindowPrefetch::fill(Slot& slot) const {
  Filled& f = slot.filled;
  for (size_t row = 0; row < f.valid_targets.size(); ++row) {
    const size_t at = row * size_t(seq_len_);
    fill_(slot.ordinal, int64_t(row),
          {f.input.data() + at, f.targets.data() + at,
           f.documents.empty() ? nullptr : f.documents.data() + at});
    f.valid_targets[row] = seq_len_ - std::count(f.targets.begin() + int64_t(at),
                                                 f.targets.begin() + int64_t(at) + seq_len_, kIgnoredTarget);
  }
}

void WindowPrefetch::start(Slot& slot, int64_t ordinal) {
  slot.ready.wait();  // a wrong prefetch may still fill it
  slot.ordinal = ordinal;
  slot.failure = nullptr;
  worker_.enqueue([this, &slot] {
    // Stores the error in the slot: an error of the stream would also reject later work on valid tokens.
    try {
      fill(slot);
    } catch (...) {
      slot.failure = std::current_exception();
    }
  });
  slot.ready = worker_.record();
}

void WindowPrefetch::forget() {
  for (Slot& slot : slots_) slot.ready.wait(), slot.ordinal = -1, slot.failure = nullptr;
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

}  // namespace cleave::data
