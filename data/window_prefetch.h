// Two buffers of samples and a worker that fills one while the other is in use. What is filled together is
// named by an ordinal; `fill` says what each of its rows holds.
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
    std::vector<int32_t> documents;       // the same, or empty
    std::vector<int64_t> valid_targets;   // of each row

    int64_t valid_in(Range rows) const;
  };

  WindowPrefetch(const SampleOptions& samples, int64_t rows, Fill fill);

  // What `ordinal` holds; then starts on `following`. The result is valid until the next call. Rethrows what
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

  int64_t seq_len_;
  Fill fill_;
  std::array<Slot, 2> slots_;
  int current_ = 0;
  Stream worker_{Stream::Mode::worker};  // last, so that it ends before what it writes to
};

}  // namespace cleave::data
