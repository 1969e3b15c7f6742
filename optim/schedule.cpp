#include "optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/error.h"

namespace cleave::optim {
namespace {

// `i` counts like DeepSpeed: -1 before the first applied step, 0 after it, and so on.

int64_t warmup_steps(const config::SchedulerConfig& c) { return std::max<int64_t>(2, c.warmup_num_steps); }

// Finished share of the warm-up at i < warmup_steps; the logarithmic share is also 0 at i = 0.
double warmup_share(const config::SchedulerConfig& c, int64_t i) {
  const double n = double(warmup_steps(c));
  return c.warmup_type == config::WarmupType::linear ? double(i) / n
                                                     : std::log(double(i + 1)) * (1.0 / std::log(n));
}

double warmup_lr(const config::SchedulerConfig& c, double peak, int64_t i) {
  if (i < 0) return c.warmup_min_lr;
  double share = 1;
  if (i < warmup_steps(c)) {
    share = warmup_share(c, i);
  } else if (c.type == config::SchedulerType::warmup_decay) {
    const double left = double(c.total_num_steps - i);
    share = std::max(0.0, left / std::max(1.0, double(c.total_num_steps - warmup_steps(c))));
  }
  return c.warmup_min_lr + (peak - c.warmup_min_lr) * share;
}

double cosine_ratio(const config::SchedulerConfig& c, int64_t i) {
  if (i < 0) return 0;
  if (i < warmup_steps(c)) return c.warmup_min_ratio + warmup_share(c, i) * (1 - c.warmup_min_ratio);
  const double done = double(i - warmup_steps(c) + 1);
  const double all = double(std::max<int64_t>(1, c.total_num_steps - warmup_steps(c)));
  const double ratio = (1 + std::cos(std::numbers::pi * std::min(1.0, done / all))) / 2;
  return std::max(0.0, c.cos_min_ratio + (1 - c.cos_min_ratio) * ratio);
}

double range_test_lr(const config::SchedulerConfig& c, int64_t i) {
  const double intervals = double(i + 1) / double(c.lr_range_test_step_size);
  return c.lr_range_test_min_lr *
         (1 + c.lr_range_test_step_rate * (c.lr_range_test_staircase ? std::floor(intervals) : intervals));
}

// The Hugging Face Trainer counts from the first step, so a warm-up starts with rate 0.
double trainers_ratio(const config::SchedulerConfig& c, int64_t step) {
  const double warmup = double(std::max<int64_t>(1, c.warmup_num_steps));
  if (step < c.warmup_num_steps) return double(step) / warmup;
  if (c.type == config::SchedulerType::trainer_constant) return 1;
  const double all = double(std::max<int64_t>(1, c.total_num_steps - c.warmup_num_steps));
  if (c.type == config::SchedulerType::trainer_linear)
    return std::max(0.0, double(c.total_num_steps - step) / all);
  return std::max(0.0, (1 + std::cos(std::numbers::pi * double(step - c.warmup_num_steps) / all)) / 2);
}

struct Cycle {
  double first, second, total;
};

Cycle cycle_of(const config::SchedulerConfig& c) {
  const double first = double(c.cycle_first_step_size),
               second = double(c.cycle_second_step_size.value_or(c.cycle_first_step_size));
  return {first, second, first + second};
}

// Height within the cycle, 0 at its ends and 1 at its peak.
double cycle_height(const config::SchedulerConfig& c, int64_t i) {
  const Cycle size = cycle_of(c);
  const double turns = double(i + 1) / size.total, x = 1 + turns - std::floor(1 + turns);
  const double peak = size.first / size.total;
  const bool rising = x <= peak;
  const int64_t stairs =
      rising ? c.cycle_first_stair_count : c.cycle_second_stair_count.value_or(c.cycle_first_stair_count);
  if (stairs <= 0) return rising ? x / peak : (x - 1) / (peak - 1);
  const double at = std::fmod(double(i + 1), size.total), n = double(stairs);
  return std::floor(at <= size.first ? at * n / size.first : (size.total - at) * n / size.second) / n;
}

Rates one_cycle(const config::SchedulerConfig& c, int64_t i) {
  constexpr double kSecondBeta = 0.99;  // DeepSpeed always sets it together with the first
  const double total = cycle_of(c).total;
  Rates r;
  const bool cycling = double(i) < total;
  const double height = cycling ? cycle_height(c, i) : 0;
  const double decays =
      cycling || c.decay_step_size == 0 ? 0 : (double(i) - total + 1) / double(c.decay_step_size);
  r.lr = (c.cycle_min_lr + (c.cycle_max_lr - c.cycle_min_lr) * height) / (1 + c.decay_lr_rate * decays);
  if (c.cycle_momentum) {
    r.momentum =
        (c.cycle_max_mom - (c.cycle_max_mom - c.cycle_min_mom) * height) * (1 + c.decay_mom_rate * decays);
    r.beta2 = kSecondBeta;
    if (i < 0) r.momentum = c.cycle_min_mom;
  }
  return r;
}

}  // namespace

LrSchedule::LrSchedule(const config::SchedulerConfig& config, double optimizer_lr)
    : config_(config), optimizer_lr_(optimizer_lr) {}

Rates LrSchedule::at(int64_t applied_steps) const {
  CHECK(applied_steps >= 0, "{} applied steps", applied_steps);
  const int64_t i = applied_steps - 1;
  switch (config_.type) {
    case config::SchedulerType::constant:
      return {.lr = optimizer_lr_};
    case config::SchedulerType::warmup:
    case config::SchedulerType::warmup_decay:
      return {.lr = warmup_lr(config_, config_.warmup_max_lr.value_or(optimizer_lr_), i)};
    case config::SchedulerType::warmup_cosine:
      return {.lr = optimizer_lr_ * cosine_ratio(config_, i)};
    case config::SchedulerType::one_cycle:
      return one_cycle(config_, i);
    case config::SchedulerType::range_test:
      return {.lr = range_test_lr(config_, i)};
    case config::SchedulerType::trainer_linear:
    case config::SchedulerType::trainer_cosine:
    case config::SchedulerType::trainer_constant:
      return {.lr = optimizer_lr_ * trainers_ratio(config_, applied_steps)};
  }
  fail(Exit::internal, "schedule {}", int(config_.type));
}

}  // namespace cleave::optim
