#include "text/sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "core/philox.h"

namespace cleave {

int32_t next_token(std::span<const float> logits, std::span<const int32_t> before, const Sampling& s,
                   uint64_t index) {
  std::vector<double> scores(logits.begin(), logits.end());
  if (s.repetition_penalty != 1)
    for (const int32_t id : before)  // once, however often it stood there
      scores[size_t(id)] = double(logits[size_t(id)]) *
                           (logits[size_t(id)] < 0 ? s.repetition_penalty : 1 / s.repetition_penalty);
  if (s.temperature <= 0) return int32_t(std::max_element(scores.begin(), scores.end()) - scores.begin());
  std::vector<int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(),
            [&](int32_t a, int32_t b) { return scores[size_t(a)] > scores[size_t(b)]; });
  if (s.top_k > 0 && s.top_k < int64_t(order.size())) order.resize(size_t(s.top_k));
  std::vector<double> sums;
  double sum = 0;
  for (const int32_t t : order)
    sums.push_back(sum += std::exp((scores[size_t(t)] - scores[size_t(order[0])]) / s.temperature));
  if (s.top_p < 1) {
    const auto enough = std::lower_bound(sums.begin(), sums.end(), s.top_p * sum);
    sums.resize(size_t(std::min<int64_t>(enough - sums.begin() + 1, int64_t(sums.size()))));
    sum = sums.back();
  }
  const double at = Philox{s.seed, hash_name("generate")}.uniform(index) * sum;
  const auto found = std::upper_bound(sums.begin(), sums.end(), at);
  return order[size_t(std::min<int64_t>(found - sums.begin(), int64_t(sums.size()) - 1))];
}

}  // namespace cleave
