#include "data/blend.h"

#include <cmath>
#include <numeric>

#include "core/error.h"
#include "core/range.h"

namespace cleave::data {

std::vector<int64_t> Blend::shares_of(std::span<const double> weights) {
  double sum = 0;
  for (const double w : weights) {
    require(std::isfinite(w) && w > 0, Exit::usage, "--data: weight {} of a source is not above 0", w);
    sum += w;
  }
  std::vector<int64_t> shares(weights.size());
  const auto take = [&](double factor) {
    bool exact = true;
    for (size_t i = 0; i < shares.size(); ++i) {
      shares[i] = std::llround(weights[i] * factor);
      exact &=
          shares[i] > 0 && std::abs(weights[i] * factor - double(shares[i])) < 1e-6 * std::min(1.0, factor);
    }
    int64_t common = 0;
    for (const int64_t s : shares) common = std::gcd(common, s);
    for (int64_t& s : shares) s /= std::max<int64_t>(1, common);
    return exact && std::accumulate(shares.begin(), shares.end(), int64_t{0}) <= kMostPeriod;
  };
  for (double factor = 1; factor <= 1e6 && sum * factor < 1e15; factor *= 10)
    if (take(factor)) return shares;
  take(double(kMostPeriod - int64_t(weights.size())) / sum);  // rounding up cannot exceed the period
  for (size_t i = 0; i < shares.size(); ++i)
    require(shares[i] > 0, Exit::usage,
            "--data: the weight {} is below a millionth of the sum {}; remove the source", weights[i], sum);
  return shares;
}

Blend::Blend(std::vector<int64_t> shares) : shares_(std::move(shares)) {
  const int64_t period = std::accumulate(shares_.begin(), shares_.end(), int64_t{0});
  CHECK(!shares_.empty() && period <= kMostPeriod, "{} sources with a period of {}", shares_.size(), period);
  std::vector<int64_t> given(shares_.size(), 0);
  order_.reserve(size_t(period));
  for (int64_t position = 0; position < period; ++position) {
    size_t first = shares_.size();
    int64_t due = 0;
    for (size_t s = 0; s < shares_.size(); ++s) {
      if (given[s] * period / shares_[s] > position) continue;  // not due yet
      const int64_t until = ceil_div((given[s] + 1) * period, shares_[s]);
      if (first < shares_.size() && until >= due) continue;
      first = s, due = until;
    }
    CHECK(first < shares_.size() && position < due, "position {} of a blend has no source", position);
    order_.push_back({int32_t(first), int32_t(given[first]++)});
  }
}

Blend::SourceSample Blend::at(int64_t position) const {
  const Entry& entry = order_[size_t(position % period())];
  return {entry.source, position / period() * shares_[size_t(entry.source)] + entry.sample};
}

}  // namespace cleave::data
