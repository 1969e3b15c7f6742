#include "config_schema/batch_sizes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <vector>

namespace cleave::config {
namespace {

// a * b * c, or nothing on overflow.
std::optional<int64_t> product(int64_t a, int64_t b, int64_t c) {
  int64_t ab = 0, abc = 0;
  if (__builtin_mul_overflow(a, b, &ab) || __builtin_mul_overflow(ab, c, &abc)) return std::nullopt;
  return abc;
}

BatchSizes derive(const BatchSizes& given, int64_t ranks) {
  BatchSizes s = given;
  if (s.train && s.micro && !s.accumulation) s.accumulation = *s.train / *s.micro / ranks;
  if (s.train && !s.micro && s.accumulation) s.micro = *s.train / ranks / *s.accumulation;
  if (s.train && !s.micro && !s.accumulation) s.micro = *s.train / ranks, s.accumulation = 1;
  if (!s.train && s.micro && !s.accumulation) s.accumulation = 1;
  if (!s.train && s.micro && s.accumulation) s.train = product(*s.micro, *s.accumulation, ranks);
  return s;
}

// Returns why the given sizes are inconsistent.
std::string mismatch(const BatchSizes& given, int64_t ranks, const std::string& origin) {
  const std::string ranks_text =
      fmt::format("{} data-parallel ranks{}", ranks, origin.empty() ? "" : fmt::format(" ({})", origin));
  if (given.train && !given.micro && !given.accumulation)
    return fmt::format("train_batch_size {} is not divisible by the {}", *given.train, ranks_text);
  std::string factors;
  if (given.micro) factors += fmt::format("train_micro_batch_size_per_gpu {} x ", *given.micro);
  if (given.accumulation) factors += fmt::format("gradient_accumulation_steps {} x ", *given.accumulation);
  factors += ranks_text;
  const auto unit = product(given.micro.value_or(1), given.accumulation.value_or(1), ranks);
  if (!unit) return factors + " is larger than any batch";
  if (given.micro && given.accumulation)
    return fmt::format("train_batch_size is {}, but {} is {}", given.train.value_or(0), factors, *unit);
  return fmt::format("train_batch_size {} is not divisible by {} = {}", given.train.value_or(0), *unit,
                     factors);
}

// Returns the divisor of n nearest to `wish`.
int64_t nearest_divisor(int64_t n, int64_t wish) {
  int64_t best = 1;
  const auto offer = [&](int64_t d) {
    if (std::abs(d - wish) < std::abs(best - wish)) best = d;
  };
  for (int64_t d = 1; d <= n / d && d <= 1'000'000; ++d)
    if (n % d == 0) offer(d), offer(n / d);
  return best;
}

// Returns valid sizes near the given ones: another train_batch_size for the same micro-batch and
// accumulation, and another micro-batch for the same train_batch_size.
std::string nearest_sets(const BatchSizes& given, int64_t ranks) {
  std::vector<std::string> sets;
  const auto add = [&](int64_t train, int64_t micro, int64_t accumulation) {
    const std::string text = fmt::format("{} = {} * {} * {}", train, micro, accumulation, ranks);
    if (std::find(sets.begin(), sets.end(), text) == sets.end()) sets.push_back(text);
  };
  const auto same_train = [&](int64_t train) {
    const int64_t per_rank = train / ranks;
    const int64_t micro =
        nearest_divisor(per_rank, given.micro.value_or(per_rank / given.accumulation.value_or(1)));
    add(train, micro, per_rank / micro);
  };
  if (given.micro && given.accumulation)
    if (const auto train = product(*given.micro, *given.accumulation, ranks))
      add(*train, *given.micro, *given.accumulation);
  if (given.train) {
    const int64_t unit =
        given.micro && !given.accumulation ? product(*given.micro, 1, ranks).value_or(ranks) : ranks;
    const int64_t below = *given.train / unit * unit;
    if (below > 0) add(below, unit / ranks, below / unit);
    if (below < *given.train && unit < INT64_MAX - below)
      add(below + unit, unit / ranks, (below + unit) / unit);
    if (below == 0 && unit > ranks && *given.train >= ranks) same_train(*given.train / ranks * ranks);
    if (*given.train % ranks == 0) same_train(*given.train);
  }
  std::string text;
  for (const std::string& s : sets) text += (text.empty() ? "" : ", ") + s;
  return text;
}

constexpr int64_t kMostAccumulation = 1'000'000;  // an engine plans each micro-batch of a step

// Returns up to four numbers of ranks near `ranks` that divide the given train_batch_size.
std::string ranks_that_fit(const BatchSizes& given, int64_t ranks) {
  constexpr size_t kMost = 4;
  const auto unit = product(given.micro.value_or(1), given.accumulation.value_or(1), 1);
  if (!given.train || !unit || *unit <= 0 || *given.train % *unit != 0) return "";
  const int64_t most = *given.train / *unit;
  std::vector<int64_t> fit;
  for (int64_t d = 1; d <= most / d && d <= 1'000'000; ++d) {
    if (most % d != 0) continue;
    fit.push_back(d);
    if (d != most / d) fit.push_back(most / d);
  }
  if (given.micro && given.accumulation) fit = {most};
  std::sort(fit.begin(), fit.end(), [&](int64_t a, int64_t b) {
    return std::abs(a - ranks) != std::abs(b - ranks) ? std::abs(a - ranks) < std::abs(b - ranks) : a < b;
  });
  fit.resize(std::min(fit.size(), kMost));
  std::sort(fit.begin(), fit.end());
  return fit.empty() ? "" : fmt::format("; data-parallel ranks that fit: {}", fmt::join(fit, ", "));
}

}  // namespace

SolvedBatch solve_batch(const BatchSizes& given, int64_t ranks, const std::string& origin) {
  SolvedBatch solved;
  if (!given.train && !given.micro) {
    solved.error =
        "the batch size is not defined; set train_batch_size or train_micro_batch_size_per_gpu to a number, "
        "or pass --per_device_train_batch_size (cleave train, Trainer)";
    return solved;
  }
  solved.sizes = derive(given, ranks);
  const auto& [train, micro, accumulation] = solved.sizes;
  const auto total = micro && accumulation ? product(*micro, *accumulation, ranks) : std::nullopt;
  if (train && total && *train > 0 && *micro > 0 && *accumulation > 0 && *total == *train) {
    if (*accumulation > kMostAccumulation)
      solved.error = fmt::format(
          "{} micro-batches per step are too many (at most {}); raise the micro-batch size, or lower "
          "train_batch_size",
          *accumulation, kMostAccumulation);
    return solved;
  }
  const std::string sets = nearest_sets(given, ranks);
  solved.error = mismatch(given, ranks, origin) +
                 (sets.empty() ? "" : "; nearest valid values, as train = micro * accumulation * ranks: ") +
                 sets + ranks_that_fit(given, ranks);
  return solved;
}

}  // namespace cleave::config
