#include "app/compare/judge.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <ranges>

#include "core/error.h"

namespace cleave::app {
namespace {

constexpr double kFp32 = 0x1p-23;  // distance from 1 to the next number
constexpr double kMargin = 8;      // several independent roundings for each one that was measured

double relative(double difference, double norm) {
  return difference == 0 ? 0 : norm > 0 ? difference / norm : std::numeric_limits<double>::infinity();
}

class Comparison {
 public:
  Comparison(const RunRecord& first, const RunRecord& second, const RunRecord& moved)
      : first_(first), second_(second), moved_(moved), rounding_(rounding_of(first, second)) {
    const size_t steps = std::min({first.steps().size(), second.steps().size(), moved.steps().size()});
    verdict_.steps = int64_t(steps), verdict_.parameters = int64_t(first.parameters().size());
    require_same_model();
    measure();
  }

  Verdict run() {
    for (int64_t step = 1; step <= verdict_.steps; ++step) {
      compare_rate(step);
      if (skips(first_, step) != skips(second_, step)) {
        note("rate", {"skipped step", "", step, 1, 0});
        continue;
      }
      compare_loss(step);
      verdict_.skipped += int64_t(skips(first_, step));
      for (const RecordedParameter& p : first_.parameters() | std::views::reverse)
        if (p.trained && !skips(first_, step)) compare_gradient(p, step);
      for (const RecordedParameter& p : first_.parameters()) compare_weight(p, step);
    }
    for (const char* what : {"rate", "loss", "gradient", "update", "frozen weight"})
      if (const auto at = closest_.find(what); at != closest_.end()) verdict_.closest.push_back(at->second);
    verdict_.hint = hint();
    return std::move(verdict_);
  }

 private:
  void require_same_model() const {
    for (const auto& [these, those] : {std::pair{&first_, &second_}, {&second_, &first_}})
      for (const RecordedParameter& p : these->parameters()) {
        const bool same = those->has(p.name) && those->parameter(p.name).numel == p.numel &&
                          those->parameter(p.name).trained == p.trained;
        require(same, Exit::usage,
                "{}: missing in one configuration, or frozen or with another shape there; compare "
                "configurations of the same model",
                p.name);
      }
  }

  // How far rounding moves each gradient and the loss.
  void measure() {
    std::vector<double> all;
    for (const RecordedParameter& p : first_.parameters()) {
      if (!p.trained) continue;
      double& most = gradient_[p.name];
      for (int64_t step = 1; step <= verdict_.steps; ++step) {
        if (skips(first_, step) || skips(moved_, step)) continue;  // a gradient is not finite
        const std::vector<float> gradient = first_.read(RunRecord::Kind::gradients, step, p.name);
        const double change = relative(
            l2_distance(moved_.read(RunRecord::Kind::gradients, step, p.name), gradient), l2_norm(gradient));
        if (std::isfinite(change)) most = std::max(most, change);
        const std::vector<float> weight = first_.read(RunRecord::Kind::weights, step - 1, p.name);
        double& square = loss_[step];
        for (size_t i = 0; i < weight.size(); ++i)
          square += std::pow(rounding_ * double(weight[i]) * double(gradient[i]), 2);
      }
      all.push_back(most);
    }
    if (all.empty()) return;
    const auto middle = all.begin() + std::ptrdiff_t(all.size() / 2);
    std::nth_element(all.begin(), middle, all.end());
    for (auto& [name, most] : gradient_) most = std::max(most, *middle);
    for (int64_t step = 1; step <= verdict_.steps; ++step)
      loss_[step] =
          std::max(std::sqrt(loss_[step]), std::fabs(loss_at(moved_, step) - loss_at(first_, step)));
  }

  static bool skips(const RunRecord& run, int64_t step) { return run.steps()[size_t(step - 1)].skipped; }
  static double loss_at(const RunRecord& run, int64_t step) { return run.steps()[size_t(step - 1)].loss; }

  void compare_rate(int64_t step) {
    const double first = first_.steps()[size_t(step - 1)].lr, second = second_.steps()[size_t(step - 1)].lr;
    note("rate", {"learning rate", fmt::format("{:g} and {:g}", first, second), step,
                  relative(std::fabs(first - second), std::fabs(first)), 1e-12});
  }

  void compare_loss(int64_t step) {
    const double first = loss_at(first_, step), second = loss_at(second_, step);
    note("loss", {"loss", fmt::format("{:.9g} and {:.9g}", first, second), step, std::fabs(first - second),
                  kMargin * loss_[step] + kFp32 * std::fabs(first)});
  }

  void compare_gradient(const RecordedParameter& p, int64_t step) {
    const std::vector<float> first = first_.read(RunRecord::Kind::gradients, step, p.name),
                             second = second_.read(RunRecord::Kind::gradients, step, p.name);
    const double norm = l2_norm(first), other = l2_norm(second);
    const Compared compared{"gradient of " + p.name, "", step, relative(l2_distance(second, first), norm),
                            kMargin * gradient_[p.name] + kFp32};
    if (!compared.same()) {
      double product = 0;
      for (size_t i = 0; i < first.size(); ++i) product += double(first[i]) * second[i];
      const double factor = norm > 0 ? product / norm / norm : 0;
      double rest = 0;
      for (size_t i = 0; i < first.size(); ++i) rest += std::pow(double(second[i]) - factor * first[i], 2);
      const bool only_scaled = std::sqrt(rest) <= compared.allowed * std::fabs(factor) * norm;
      factors_.push_back(only_scaled ? std::optional(factor) : std::nullopt);
      if (other == 0 && norm > 0) missing_.push_back(p.name);
    }
    note("gradient", compared);
  }

  void compare_weight(const RecordedParameter& p, int64_t step) {
    const std::vector<float> before = first_.read(RunRecord::Kind::weights, step - 1, p.name),
                             first = first_.read(RunRecord::Kind::weights, step, p.name),
                             second = second_.read(RunRecord::Kind::weights, step, p.name);
    const double update = l2_distance(first, before), difference = l2_distance(second, first);
    if (!p.trained) return note("frozen weight", {"frozen weight " + p.name, "", step, difference, 0});
    const double rounding = second_.parameter(p.name).rounding;
    double share = 64 * kFp32 + kMargin * rounding;
    if (first_.arithmetic().signs) share += 2 * std::sqrt(rounding + 16 * kFp32);
    const double allowed = 4 * kFp32 * l2_norm(first) + share * update;
    // Relative to the update, whose size a reader knows: the learning rate.
    const double size = update > 0 ? update : 1;
    note("update", {"update of " + p.name, "", step, difference / size, allowed / size});
  }

  void note(const std::string& what, Compared compared) {
    if (!compared.same()) verdict_.different.push_back(compared);
    const auto share = [](const Compared& c) {
      return c.allowed > 0 ? c.difference / c.allowed : c.difference;
    };
    const auto [at, is_new] = closest_.emplace(what, compared);
    if (!is_new && share(compared) > share(at->second)) at->second = std::move(compared);
  }

  std::string hint() const {
    const auto count = std::ranges::count_if(
        verdict_.different, [](const Compared& c) { return c.where.starts_with("gradient"); });
    const auto gradients = std::ranges::count_if(first_.parameters(), &RecordedParameter::trained);
    if (verdict_.different.empty()) return {};
    const std::string& where = verdict_.different.front().where;
    if (where.starts_with("loss"))
      return "the runs compute another loss from equal weights: compare samples, dropout and the model";
    if (where.starts_with("learning rate")) return "compare the sections optimizer and scheduler";
    if (where.starts_with("update"))
      return "the gradients are equal: compare the sections optimizer, scheduler and gradient_clipping";
    if (!missing_.empty()) return missing_.front() + " has no gradient in the second run";
    const bool one_factor = !factors_.empty() && std::ranges::all_of(factors_, [&](const auto& factor) {
      return factor && factors_[0] && std::fabs(*factor - *factors_[0]) <= 1e-3 * std::fabs(*factors_[0]);
    });
    if (one_factor && count == gradients * verdict_.steps)
      return fmt::format("every gradient is multiplied by {:.6g}: compare the divisors of the loss",
                         *factors_[0]);
    return {};
  }

  const RunRecord &first_, &second_, &moved_;
  const double rounding_;
  Verdict verdict_;
  std::map<std::string, double> gradient_;  // relative change by rounding
  std::map<int64_t, double> loss_;          // change by rounding, of each step
  std::map<std::string, Compared> closest_;
  std::vector<std::optional<double>> factors_;  // of gradients that differ; none: not by a factor alone
  std::vector<std::string> missing_;
};

}  // namespace

double rounding_of(const RunRecord& first, const RunRecord& second) {
  return std::max(first.arithmetic().rounding, second.arithmetic().rounding);
}

Verdict judge(const RunRecord& first, const RunRecord& second, const RunRecord& moved) {
  return Comparison(first, second, moved).run();
}

}  // namespace cleave::app
