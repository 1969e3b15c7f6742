// Texts that grow while a model writes them: how long each is, and the passes that make them longer.
#pragma once
#include "runtime/generation/text_part.h"
#include "runtime/stage/stage_shape.h"

namespace cleave::runtime {

// What one rank of the data and sequence axes (a sharer) computes at a time.
struct PassOfTexts {
  TextPass rows;
  Range wanted;               // the rows behind which logits are asked for
  std::vector<size_t> parts;  // that those rows end, by their number in extend()
};

class Texts {
 public:
  // `each` texts of `positions` positions at each of `sharers`; passes have at most `most_rows` rows, and
  // always a multiple of `multiple`, which divides most_rows.
  struct Limits {
    int64_t each = 0, sharers = 1, positions = 1, most_rows = 1, multiple = 1;
  };
  explicit Texts(const Limits& limits) : limits_(limits), lengths_(size_t(limits.each * limits.sharers), 0) {}

  int64_t count() const { return int64_t(lengths_.size()); }
  // The passes of each sharer, as many for each. Error(internal) for parts that do not fit what the texts
  // have; otherwise these have become longer.
  std::vector<std::vector<PassOfTexts>> extend(const std::vector<TextPart>& parts);

 private:
  void check(const std::vector<TextPart>& parts) const;
  void pad(PassOfTexts& pass) const;

  Limits limits_;
  std::vector<int64_t> lengths_;  // of every text
};

}  // namespace cleave::runtime
