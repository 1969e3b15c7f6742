// Order of samples from several sources: a pure function of the position in the training, so every reader
// gets the same order from any position on.
//
// Shares are positive integers with sum P, the period. At each position, the source with the earliest
// deadline comes next: sample j (from 0) of a source with share a may not come before position floor(j P / a)
// and must come before position ceil((j + 1) P / a); ties go to the first source. Earliest deadline first
// meets all these deadlines (Baruah et al., "Proportionate progress", 1996), so after n samples each source
// has provided n a / P of them, with an error below one. After P samples all counts are exact, and the order
// repeats.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace cleave::data {

class Blend {
 public:
  // Positive integers in proportion to the weights: exact if the weights have at most 6 decimals and the
  // period is at most kMostPeriod, otherwise the nearest in millionths of their sum. Throws Error(usage) for
  // a weight that is not finite, not positive, or below a millionth of the sum.
  static std::vector<int64_t> shares_of(std::span<const double> weights);
  static constexpr int64_t kMostPeriod = 1'000'000;

  explicit Blend(std::vector<int64_t> shares);

  struct SourceSample {
    int source = 0;
    int64_t sample = 0;  // of the source, counted over the whole training
  };
  SourceSample at(int64_t position) const;
  int64_t period() const { return int64_t(order_.size()); }

 private:
  struct Entry {
    int32_t source, sample;  // counted from the start of the period
  };
  std::vector<int64_t> shares_;
  std::vector<Entry> order_;
};

}  // namespace cleave::data
