#include "monitor/mlflow_sink.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>
#include <utility>

#include "core/error.h"
#include "core/secrets.h"
#include "core/version.h"
#include "core/warnings.h"
#include "monitor/run_origin.h"

namespace cleave::monitor {
namespace {

using nlohmann::json;
using Kind = MlflowFailure::Kind;
using Ms = std::chrono::milliseconds;

constexpr size_t kLongestKey = 250, kLongestTag = 5000, kTagsPerCall = 100;
constexpr std::chrono::minutes kLongestWait{1};

// MLflow's names have letters, digits and these characters.
std::string key_of(std::string_view name) {
  std::string key(name.substr(0, kLongestKey));
  for (char& c : key)
    if (!std::isalnum(uint8_t(c)) && std::string_view("_-. /").find(c) == std::string_view::npos) c = '_';
  return key;
}

// Cuts a text without cutting a character of UTF-8.
std::string cut(std::string text, size_t most) {
  if (text.size() <= most) return text;
  while (most > 0 && (uint8_t(text[most]) & 0xC0) == 0x80) --most;
  text.resize(most);
  return text;
}

void flatten(const std::string& name, const json& value, MlflowText& out) {
  if (value.is_object() && !value.empty()) {
    for (const auto& [key, item] : value.items()) flatten(name.empty() ? key : name + "." + key, item, out);
    return;
  }
  out[key_of(name)] = value.is_string() ? value.get<std::string>()
                                        : value.dump(-1, ' ', false, json::error_handler_t::replace);
}

// Events carry the steady clock, MLflow needs the time of day.
int64_t time_of(double steady) { return unix_ms() - int64_t((steady_seconds() - steady) * 1e3); }

MlflowText first_of(const MlflowText& all, size_t most) {
  return {all.begin(), std::next(all.begin(), ptrdiff_t(std::min(most, all.size())))};
}

void remove(MlflowText& all, const MlflowText& sent) {
  for (const auto& [key, value] : sent)
    if (const auto at = all.find(key); at != all.end() && at->second == value) all.erase(at);
}

}  // namespace

MlflowSink::MlflowSink(std::unique_ptr<MlflowStore> store, MlflowSinkOptions options)
    : store_(std::move(store)), options_(std::move(options)) {}

EventKinds MlflowSink::takes() const {
  return kinds_of<Started, Stepped, Evaluated, Measured, Communicated, Allocated, Checkpointed, Warned,
                  Ended>();
}

void MlflowSink::add(const std::string& key, double value, int64_t step, int64_t time_ms) {
  if (metrics_.size() >= options_.capacity) metrics_.pop_front(), ++lost_;
  metrics_.push_back({key_of(key), value, time_ms, step});
}

void MlflowSink::take(const Started& e) {
  started_ = true;
  run_tags_ = tags_of_origin();
  run_tags_["cleave.version"] = std::string(build::version);
  if (e.step > 0) run_tags_["cleave.resumed_step"] = std::to_string(e.step);
  // The existing run of a job has its own tags.
  for (const auto& [key, value] : run_tags_)
    if (key.starts_with("cleave.")) tags_[key] = value;
  json facts = json::parse(e.fields, nullptr, /*allow_exceptions=*/false);
  MlflowText all;
  if (facts.is_object()) {
    // Measured values differ after a resume, and parameters of a run never change.
    for (const char* measured : {"step", "steps", "memory_planned", "matmul_flops_per_s", "products"})
      facts.erase(measured);
    if (const json config = facts.value("config", json::object()); config.is_object())
      flatten("", config, all);
    facts.erase("config");
    flatten("", facts, all);
  }
  all = first_of(all, store_->most_params_of_run());
  for (auto& [key, value] : all) params_[key] = cut(std::move(value), store_->longest_param());
  artifacts_.insert(e.files.begin(), e.files.end());
  work();
}

void MlflowSink::take(const Stepped& e) {
  const StepMetrics& m = e.metrics;
  const int64_t time = time_of(e.time);
  const auto add_all = [&](std::initializer_list<std::pair<const char*, double>> values) {
    for (const auto& [name, value] : values) add(name, value, m.step, time);
  };
  add_all({{"loss", m.loss}, {"lr", m.lr}, {"grad_norm", m.grad_norm}, {"loss_scale", m.loss_scale}});
  add_all({{"skipped_total", double(m.skipped_total)}, {"samples", double(e.samples)}});
  if (m.tokens > 0)
    add_all({{"epoch", m.epoch},
             {"tokens", double(m.tokens)},
             {"tokens_per_s", m.tokens_per_s},
             {"step_ms", m.step_ms},
             {"mfu", m.mfu}});
  for (const auto& [name, bytes] : m.comm_bytes) add("comm_bytes/" + name, double(bytes), m.step, time);
  for (const auto& [name, ms] : m.times_ms) add("times_ms/" + name, ms, m.step, time);
  work();
}

void MlflowSink::take(const Evaluated& e) {
  const std::string set = e.metrics.data.empty() ? "" : e.metrics.data + "/";
  const int64_t time = unix_ms();
  add(set + "validation_loss", e.metrics.loss, e.metrics.step, time);
  add(set + "perplexity", e.metrics.perplexity(), e.metrics.step, time);
  if (e.metrics.accuracy) add(set + "accuracy", *e.metrics.accuracy, e.metrics.step, time);
  work();
}

void MlflowSink::take(const Measured& e) {
  add(e.scalar.tag, e.scalar.value, e.samples, unix_ms());
  work();
}

void MlflowSink::take(const Communicated& e) {
  for (const auto& [name, sum] : e.sums) {
    const std::string base = "collectives/" + name;
    add(base + "/calls", double(sum.calls), e.step, unix_ms());
    add(base + "/bytes", double(sum.bytes), e.step, unix_ms());
    add(base + "/ms", sum.seconds * 1e3, e.step, unix_ms());
  }
}

void MlflowSink::take(const Allocated& e) {
  for (const auto& [name, bytes] : e.bytes)
    add(fmt::format("memory_{}_bytes/{}", name_of(e.kind), name), double(bytes), e.step, unix_ms());
}

void MlflowSink::take(const Checkpointed& e) {
  const std::string base = fmt::format("checkpoint/{}_", name_of(e.kind));
  add(base + "seconds", e.seconds, e.step, unix_ms());
  add(base + "bytes", double(e.bytes), e.step, unix_ms());
  tags_[fmt::format("cleave.checkpoint_{}", name_of(e.kind))] = cut(e.path, kLongestTag);
}

void MlflowSink::take(const Warned& e) { warnings_ += without_secrets(e.text) + "\n"; }

void MlflowSink::take(const Ended& e) { status_ = e.stopped ? "KILLED" : "FINISHED"; }

void MlflowSink::work() {
  const auto now = Clock::now();
  if (started_ && now >= next_system_) {
    for (const Scalar& s : system_.sample()) add(s.tag, s.value, samples_of_system_, unix_ms());
    ++samples_of_system_, next_system_ = now + options_.system_interval;
  }
  if (now < next_) return;
  next_ = now + options_.interval;
  sent();
}

bool MlflowSink::sent() {
  try {
    while (!metrics_.empty() || !params_.empty() || !tags_.empty() || !artifacts_.empty()) try {
        send_next();
        failures_ = 0, good_ = Clock::now();
      } catch (const MlflowFailure& e) {
        if (e.kind != Kind::refused) throw;
        drop_refused(e);
      }
    return true;
  } catch (const MlflowFailure& e) {
    failed(e);
    return false;
  }
}

void MlflowSink::send_next() {
  store_->open(run_tags_);
  if (metrics_.empty() && params_.empty() && tags_.empty()) return send_artifact();
  const size_t count = std::min(metrics_.size(), store_->most_metrics());
  const std::vector<MlflowMetric> points(metrics_.begin(), metrics_.begin() + ptrdiff_t(count));
  // Parameters and tags come first; a call has at most 1000 values.
  const MlflowText params = first_of(params_, store_->most_params()), tags = first_of(tags_, kTagsPerCall);
  if (params.empty() && tags.empty())
    store_->log(points, {}, {});
  else
    store_->log({}, params, tags);
  remove(params_, params), remove(tags_, tags);
  if (params.empty() && tags.empty()) metrics_.erase(metrics_.begin(), metrics_.begin() + ptrdiff_t(count));
}

void MlflowSink::send_artifact() {
  store_->artifact(artifacts_.begin()->first, artifacts_.begin()->second);
  artifacts_.erase(artifacts_.begin());
}

// The server's answer concerns the values of one request, which will not be accepted later.
void MlflowSink::drop_refused(const MlflowFailure& failure) {
  if (!std::exchange(refused_, true)) warn("cleave.mlflow: {}: {}", options_.place, failure.what());
  if (!params_.empty() || !tags_.empty()) {
    remove(params_, first_of(params_, store_->most_params())), remove(tags_, first_of(tags_, kTagsPerCall));
  } else if (!metrics_.empty()) {
    const size_t count = std::min(metrics_.size(), store_->most_metrics());
    metrics_.erase(metrics_.begin(), metrics_.begin() + ptrdiff_t(count));
    lost_ += int64_t(count);
  } else if (!artifacts_.empty()) {
    artifacts_.clear();
  }
}

void MlflowSink::failed(const MlflowFailure& failure) {
  problem_ = failure.what();
  if (failure.kind == Kind::lost) fail(Exit::usage, "{}: {}", options_.place, failure.what());
  const int doubled = std::min(failures_++, 10);
  std::minstd_rand random{std::random_device{}()};
  const double jitter = std::uniform_real_distribution(0.5, 1.0)(random);
  const Ms wait(int64_t(double(options_.first_wait.count() << doubled) * jitter));
  const Ms asked(int64_t(failure.retry_after_s * 1e3));
  next_ = Clock::now() + std::min<Ms>(std::max(wait, asked), kLongestWait);
  if (Clock::now() - good_ > options_.patience)
    tell(fmt::format("{}: {}; the training continues, and the metrics are sent when the server answers",
                     options_.place, failure.what()));
}

void MlflowSink::tell(const std::string& text) {
  if (!std::exchange(told_, true)) warn("cleave.mlflow: {}", text);
}

void MlflowSink::end() {
  if (!started_ && metrics_.empty()) return;
  if (!warnings_.empty()) artifacts_["warnings.txt"] = std::exchange(warnings_, {});
  const auto until = Clock::now() + options_.end;
  // Waits as long as the server asked.
  for (; failures_ == 0 || next_ < until;) try {
      if (failures_ > 0) std::this_thread::sleep_until(next_);
      if (!sent()) continue;
      store_->finish(status_, unix_ms());
      if (lost_ > 0) warn("cleave.mlflow: {}: {} metrics were not sent", options_.place, lost_);
      return;
    } catch (const MlflowFailure& e) {
      if (e.kind == Kind::refused) break;
      failed(e);
    }
  tell(fmt::format("{}: {}; {} metrics were not sent", options_.place, problem_,
                   lost_ + int64_t(metrics_.size())));
}

}  // namespace cleave::monitor
