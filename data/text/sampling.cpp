#include "data/text/sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/philox.h"

namespace cleave::text {
namespace {

// Tokens by weight: the most likely first; ties in order of ids.
class Candidates {
 public:
  explicit Candidates(std::vector<double> weights) : weights_(std::move(weights)), order_(weights_.size()) {
    std::iota(order_.begin(), order_.end(), 0);
  }

  void leave_likeliest(int64_t count) {
    if (count >= int64_t(order_.size())) return;
    sort(0, size_t(count));
    order_.resize(size_t(count));
  }
  // Keeps the smallest set of tokens with this share of all weights; sorts only a few more tokens than these.
  void leave_share(double share) {
    const double enough = share * sum();
    size_t count = 0, sorted = 0;
    for (double sum = 0; count == 0 || (sum < enough && count < order_.size());) {
      if (count == sorted) sort(count, sorted = std::min(order_.size(), std::max<size_t>(64, 8 * sorted)));
      sum += weights_[size_t(order_[count++])];
    }
    order_.resize(count);
  }
  double sum() const {
    double sum = 0;
    for (const int32_t t : order_) sum += weights_[size_t(t)];
    return sum;
  }
  // Token at which the cumulative weight exceeds this fraction, in [0, 1), of the total.
  int32_t at(double part) const {
    double left = part * sum();
    int32_t found = order_[0];
    for (const int32_t t : order_) {
      if (weights_[size_t(t)] == 0) continue;  // never drawn, even if rounding leaves a remainder
      found = t;
      if ((left -= weights_[size_t(t)]) < 0) break;
    }
    return found;
  }

 private:
  // Sorts positions [from, to); those before `from` are already the most likely ones in order.
  void sort(size_t from, size_t to) {
    const auto likelier = [&](int32_t a, int32_t b) {
      return std::pair(-weights_[size_t(a)], a) < std::pair(-weights_[size_t(b)], b);
    };
    const auto begin = order_.begin() + int64_t(from), end = order_.begin() + int64_t(to);
    if (end != order_.end()) std::nth_element(begin, end, order_.end(), likelier);
    std::sort(begin, end, likelier);
  }
  const std::vector<double> weights_;
  std::vector<int32_t> order_;
};

}  // namespace

int32_t next_token(std::span<const float> logits, std::span<const int32_t> before, const Sampling& s,
                   uint64_t index) {
  std::vector<double> scores(logits.begin(), logits.end());
  if (s.repetition_penalty != 1)
    for (const int32_t id : before)  // once per token, not per occurrence
      scores[size_t(id)] = double(logits[size_t(id)]) *
                           (logits[size_t(id)] < 0 ? s.repetition_penalty : 1 / s.repetition_penalty);
  const auto best = std::max_element(scores.begin(), scores.end());
  require(std::isfinite(*best) &&
              std::none_of(scores.begin(), scores.end(), [](double v) { return std::isnan(v); }),
          Exit::training,
          "logits: not finite, so sampling is impossible; the training of the model may have diverged");
  if (s.temperature <= 0) return int32_t(best - scores.begin());
  const double top = *best;
  for (double& score : scores) score = std::exp((score - top) / s.temperature);
  Candidates candidates(std::move(scores));
  if (s.top_k > 0) candidates.leave_likeliest(s.top_k);
  if (s.top_p < 1) candidates.leave_share(s.top_p);
  return candidates.at(Philox{s.seed, hash_name("generate")}.uniform(index));
}

}  // namespace cleave::text
