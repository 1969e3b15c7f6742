// Two buffers of window rows and a worker that fills one while the other is in use. Micro-batches are named
// by an ordinal; `rows` says which windows each holds.
#pragma once
#include <array>
#include <exception>
#include <functional>
#include <vector>

#include "data/windows.h"
#include "device/stream.h"

namespace cleave {

class WindowPrefetch {
 public:
  // The window that is row `row` of micro-batch `ordinal`, or kNoWindow for padding. Called on the worker.
  using Rows = std::function<int64_t(int64_t ordinal, int64_t row)>;
  static constexpr int64_t kNoWindow = -1;

  struct Filled {
    std::vector<int32_t> input, targets;  // [micro_batch * seq_len]
    int64_t valid_targets = 0;
  };

  WindowPrefetch(Windows windows, int64_t micro_batch, Rows rows);

  // Micro-batch `ordinal`; then starts on `following`. The result is valid until the next call. Rethrows what
  // its reading threw, every time it is asked for.
  Filled& get(int64_t ordinal, int64_t following);

 private:
  struct Slot {
    Filled filled;
    int64_t ordinal = -1;
    std::exception_ptr failure;
    Event ready;
  };

  void start(Slot& slot, int64_t ordinal);
  void fill(Slot& slot) const;

  Windows windows_;
  int64_t micro_batch_;
  Rows rows_;
  std::array<Slot, 2> slots_;
  int current_ = 0;
  Stream worker_{Stream::Mode::worker};  // last, so that it ends before what it writes to
};

}  // namespace cleave
