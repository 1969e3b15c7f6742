#include "monitor/progress.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/error.h"
#include "monitor/event.h"

namespace cleave::monitor {
namespace {

constexpr double kRedrawInterval = 0.1;                // seconds
constexpr double kRecent = 60, kPointInterval = 0.25;  // seconds
constexpr int64_t kRecentSteps = 16;
constexpr int kShortestBar = 8, kLongestBar = 40;
constexpr const char* kClearLine = "\r\x1b[K";

std::string bar(int64_t step, int64_t total, int width) {
  const double part = total > 0 ? std::clamp(double(step) / double(total), 0.0, 1.0) : 0;
  const auto full = size_t(part * width);
  std::string out(size_t(width), ' ');
  std::fill_n(out.begin(), full, '=');
  if (full < out.size()) out[full] = '>';
  return "[" + out + "] ";
}

void print(std::FILE* out, std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), out);
  std::fflush(out);
}

}  // namespace

std::string format_rate(double tokens_per_s) {
  if (!std::isfinite(tokens_per_s)) return "?";
  if (tokens_per_s < 999.5) return fmt::format("{:.3g}", tokens_per_s);
  if (tokens_per_s < 999.5e3) return fmt::format("{:.3g} k", tokens_per_s / 1e3);
  return fmt::format("{:.3g} M", tokens_per_s / 1e6);
}

std::string format_duration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "?";
  const auto s = int64_t(std::ceil(seconds));
  if (s < 3600) return fmt::format("{}:{:02}", s / 60, s % 60);
  if (s < 86400) return fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
  return fmt::format("{} d {} h", s / 86400, s / 3600 % 24);
}

Progress::Progress(ProgressOptions options) : options_(std::move(options)) {
  if (!options_.now) options_.now = steady_seconds;
  recent_.push_back({options_.now(), options_.done});
}

void Progress::step(int64_t step, double loss, int64_t tokens) {
  step_ = step, loss_ = loss, tokens_ = tokens;
  const double now = options_.now();
  if (now - recent_.back().time >= kPointInterval) recent_.push_back({now, step});
  while (recent_.size() > 2 && now - recent_[1].time >= kRecent && step - recent_[1].step >= kRecentSteps)
    recent_.pop_front();
  const double interval = options_.is_terminal ? kRedrawInterval : options_.log_interval_s;
  if (shown_step_ == 0 || step >= options_.total || options_.now() - shown_at_ >= interval) show();
}

double Progress::seconds_a_step() const {
  return (options_.now() - recent_.front().time) / double(step_ - recent_.front().step);
}

std::string Progress::status() const {
  const double each = seconds_a_step();
  std::string epoch;
  if (options_.steps_per_epoch > 0)
    epoch = fmt::format("  epoch {:.2f}", options_.epochs_done + double(step_ - options_.done) /
                                                                     double(options_.steps_per_epoch));
  return fmt::format("{}/{}  loss {:.4f}{}  {} tokens/s  ETA {}", step_, options_.total, loss_, epoch,
                     format_rate(double(tokens_) / each),
                     format_duration(each * double(std::max<int64_t>(0, options_.total - step_))));
}

void Progress::show() {
  shown_at_ = options_.now();
  shown_step_ = step_;
  if (!options_.out || finished_) return;
  std::string text = status();
  if (!options_.is_terminal) {
    print(options_.out, "step " + text + "\n");
    return;
  }
  // Leaves the last column free: a full line makes some terminals start a new one.
  const int room = options_.columns - 1 - int(text.size()) - 3;
  if (room >= kShortestBar) text.insert(0, bar(step_, options_.total, std::min(room, kLongestBar)));
  text.resize(std::min(text.size(), size_t(std::max(0, options_.columns - 1))));
  print(options_.out, kClearLine + text);
  bar_drawn_ = true;
}

void Progress::line(std::string_view text) {
  if (!options_.out) return;
  print(options_.out, fmt::format("{}{}\n", bar_drawn_ ? kClearLine : "", text));
  if (!std::exchange(bar_drawn_, false)) return;
  show();
}

void Progress::finish() {
  if (finished_) return;
  if (step_ != shown_step_) show();
  finished_ = true;
  if (options_.out && std::exchange(bar_drawn_, false)) print(options_.out, "\n");
}

}  // namespace cleave::monitor
