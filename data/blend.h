// In which order samples come from several sources. It is a pure function of the sample's position in the
// training: whoever asks, from whatever position on, gets the same order.
//
// Shares are whole numbers that sum to the period P. At each position the source is the one whose next sample
// is due first: sample j (from 0) of a source with share a may not come before position floor(j P / a) and
// has to come before position ceil((j + 1) P / a); of equal ones the first source is taken. This is earliest
// deadline first, which meets all of these times (Baruah et al., "Proportionate progress", 1996), so that
// after n samples each source has given n a / P of them to less than one. After P samples all are exact, and
// the order begins again.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace cleave::data {

class Blend {
 public:
  // Whole numbers above 0 in the proportion of the weights: exact where they have at most 6 decimals and come
  // to a period of at most kMostPeriod, and otherwise the nearest in millionths of their sum. Error(usage)
  // for a weight that is not above 0 or not finite, and for one that is less than a millionth of the sum.
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
    int32_t source, sample;  // counted from the beginning of the period
  };
  std::vector<int64_t> shares_;
  std::vector<Entry> order_;
};

}  // namespace cleave::data
