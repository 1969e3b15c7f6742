// State of incremental generation: the length of each text, and the passes that extend texts.
#pragma once
#include "runtime/generation/text_part.h"
#include "runtime/stage/stage_shape.h"

namespace cleave::runtime {

// Pass of one rank of the data and sequence axes (a sharer).
struct PassOfTexts {
  TextPass rows;
  Range wanted;               // rows with requested logits after them
  std::vector<size_t> parts;  // parts that end with those rows, by index in extend()
};

class Texts {
 public:
  // `each` texts with `positions` positions at each of `sharers`. A pass has at most `most_rows` rows, always
  // a multiple of `multiple`, which divides most_rows.
  struct Limits {
    int64_t each = 0, sharers = 1, positions = 1, most_rows = 1, multiple = 1;
  };
  explicit Texts(const Limits& limits) : limits_(limits), lengths_(size_t(limits.each * limits.sharers), 0) {}

  int64_t count() const { return int64_t(lengths_.size()); }
  // Returns the passes of each sharer, the same number for each, and extends the texts. Throws
  // Error(internal) for parts that do not fit the texts.
  std::vector<std::vector<PassOfTexts>> extend(const std::vector<TextPart>& parts);

 private:
  void check(const std::vector<TextPart>& parts) const;
  void pad(PassOfTexts& pass) const;

  Limits limits_;
  std::vector<int64_t> lengths_;  // by text
};

}  // namespace cleave::runtime
