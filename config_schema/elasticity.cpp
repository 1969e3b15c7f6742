#include "config_schema/elasticity.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <set>

namespace cleave::config {
namespace {

// Multiples of a micro-batch that have many divisors.
constexpr int64_t kHighlyComposite[] = {
    1,     2,     4,     6,      12,     24,     36,     48,     60,     120,    180,    240,   360,
    720,   840,   1260,  1680,   2520,   5040,   7560,   10080,  15120,  20160,  25200,  27720, 45360,
    50400, 55440, 83160, 110880, 166320, 221760, 277200, 332640, 498960, 554400, 665280, 720720};

struct Range64 {
  int64_t least, most;
};

// Returns the least common multiple, or nothing above `cap`.
int64_t multiple_of(const std::vector<int64_t>& sizes, int64_t cap) {
  int64_t all = 1;
  for (const int64_t size : sizes) {
    const int64_t step = size / std::gcd(all, size);
    if (all > cap / step) return cap + 1;
    all *= step;
  }
  return all;
}

std::set<int64_t> candidates(const std::vector<int64_t>& micros, int64_t cap) {
  std::vector<int64_t> bases = micros;
  bases.push_back(multiple_of(micros, cap));
  std::set<int64_t> found;
  for (const int64_t base : bases) {
    if (base > cap) continue;
    const auto above = std::upper_bound(std::begin(kHighlyComposite), std::end(kHighlyComposite), cap / base);
    found.insert(base * *std::prev(above));
  }
  return found;
}

// Returns the numbers of ranks within the range that divide the batch into micro-batches.
std::set<int64_t> ranks_of(int64_t batch, const std::vector<int64_t>& micros, Range64 range) {
  std::set<int64_t> found;
  for (const int64_t micro : micros) {
    if (batch % micro != 0) continue;
    const int64_t most = batch / micro;
    for (int64_t d = 1; d <= most / d; ++d) {
      if (most % d != 0) continue;
      for (const int64_t ranks : {d, most / d})
        if (ranks >= range.least && ranks <= range.most) found.insert(ranks);
    }
  }
  return found;
}

struct Found {
  int64_t train = 0;
  std::set<int64_t> ranks;
};

Found most_divisible(const std::vector<int64_t>& micros, int64_t cap, Range64 range, bool larger) {
  Found best{*std::min_element(micros.begin(), micros.end()), {}};
  for (const int64_t batch : candidates(micros, cap)) {
    std::set<int64_t> ranks = ranks_of(batch, micros, range);
    const bool better = larger ? batch > best.train : batch < best.train;
    if (ranks.size() > best.ranks.size() || (ranks.size() == best.ranks.size() && better))
      best = {batch, std::move(ranks)};
  }
  return best;
}

// Version 0.2 adds ranks in whole nodes. Ranks outside of its list get the largest batch that divides.
Found by_nodes(const ElasticityConfig& rule, int64_t data_ranks) {
  const std::vector<int64_t>& micros = rule.micro_batch_sizes;
  const int64_t per_node = rule.num_gpus_per_node / rule.model_parallel_size;
  const int64_t cap = rule.max_train_batch_size / per_node;
  const int64_t least = rule.min_gpus / rule.num_gpus_per_node, most = rule.max_gpus / rule.num_gpus_per_node;
  const int64_t smallest = *std::min_element(micros.begin(), micros.end());
  const Range64 range{std::max<int64_t>(least, 1), most == 0 ? cap / smallest : most};
  const Found nodes = most_divisible(micros, cap, range, rule.prefer_larger_batch);
  Found found{nodes.train * per_node, {}};
  for (const int64_t n : nodes.ranks) found.ranks.insert(n * per_node);
  if (found.ranks.empty() || found.ranks.count(data_ranks)) return found;
  Found exact;
  for (const int64_t micro : micros) {
    if (micro > rule.max_train_batch_size / data_ranks) continue;
    const int64_t unit = micro * data_ranks, batch = rule.max_train_batch_size / unit * unit;
    const bool better = rule.prefer_larger_batch ? batch > exact.train : batch < exact.train;
    if (exact.train == 0 || better) exact.train = batch;
  }
  if (exact.train > 0) exact.ranks = {data_ranks};
  return exact;
}

}  // namespace

ElasticBatch elastic_batch(const ElasticityConfig& rule, int64_t data_ranks) {
  const std::vector<int64_t>& micros = rule.micro_batch_sizes;
  ElasticBatch out;
  const int64_t largest = *std::max_element(micros.begin(), micros.end());
  const int64_t per_node = rule.version == 0.1 ? 1 : rule.num_gpus_per_node / rule.model_parallel_size;
  if (largest > rule.max_train_batch_size / per_node) {
    out.error = fmt::format(
        "{} is below the micro-batch {} of elasticity.micro_batch_sizes{}; raise it, or remove "
        "that micro-batch",
        rule.max_train_batch_size, largest,
        per_node == 1 ? "" : fmt::format(" times {} data-parallel ranks per node", per_node));
    return out;
  }
  const Found found = rule.version == 0.1
                          ? most_divisible(micros, rule.max_train_batch_size, {rule.min_gpus, rule.max_gpus},
                                           rule.prefer_larger_batch)
                          : by_nodes(rule, data_ranks);
  out.data_ranks.assign(found.ranks.begin(), found.ranks.end());
  if (!found.ranks.count(data_ranks)) {
    out.error = found.ranks.empty()
                    ? fmt::format(
                          "no number of ranks from elasticity.min_gpus {} to elasticity.max_gpus {} "
                          "divides a batch; change these limits or elasticity.micro_batch_sizes",
                          rule.min_gpus, rule.max_gpus)
                    : fmt::format("{} data-parallel ranks do not divide the batch of {}; use one of {}",
                                  data_ranks, found.train, fmt::join(out.data_ranks, ", "));
    return out;
  }
  out.train = found.train;
  for (const int64_t micro : micros)
    if (found.train / data_ranks % micro == 0) out.micro = std::max(out.micro, micro);
  return out;
}

}  // namespace cleave::config
