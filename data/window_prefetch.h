// Two buffers of samples, and a worker that fills one while the other is in use. An ordinal names the
// contents of a buffer; `fill` defines its rows.
#pragma once
#include <array>
#include <exception>
#include <functional>
#include <vector>

#include "data/samples.h"
#include "device/stream.h"

namespace cleave::data {

class WindowPrefetch {
 public:
  // Writes row `row` of `ordinal`. Called on the worker.
  using Fill = std::function<void(int64_t ordinal, int64_t row, const SampleRow& to)>;

  struct Filled {
    std::vector<int32_t> input, targets;  // [rows * seq_len]
    std::vector<int32_t> documents;       // same shape, or empty
    std::vector<int64_t> valid_targets;   // per row

    int64_t valid_in(Range rows) const;
  };

  WindowPrefetch(const SampleOptions& samples, int64_t rows, Fill fill);

  // Returns the contents of `ordinal` and starts reading `following`. The result is valid until the next
  // call. Rethrows errors of reading `ordinal` on every call.
  Filled& get(int64_t ordinal, int64_t following);
  // Drops all contents: the next get() fills them again. No fill is running afterwards.
  void forget();

 private:
  struct Slot {
    Filled filled;
    int64_t ordinal = -1;
    std::exception_ptr failure;
    Event ready;
  };

  void start(Slot& slot, int64_t ordinal);
  void fill(Slot& slot) const;

  int64_t seq_len_;
  Fill fill_;
  std::array<Slot, 2> slots_;
  int current_ = 0;
  Stream worker_{Stream::Mode::worker};  // last, so that it is destroyed before its buffers
};

}  // namespace cleave::data
