#include "monitor/event_queue.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "core/json_path.h"

namespace cleave::monitor {
namespace {

using nlohmann::json;

constexpr size_t kMostWaiting = 100000;  // for a caller that takes none

json value_of(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return value;
}

json object_in(const std::string& text) {
  const json value = json::parse(text, nullptr, /*allow_exceptions=*/false);
  return value.is_object() ? value : json::object();
}

}  // namespace

class EventQueue::Adds final : public Sink {
 public:
  using Sink::take;
  Adds(std::string name, std::shared_ptr<Texts> texts) : name_(std::move(name)), texts_(std::move(texts)) {}
  std::string name() const override { return name_; }
  EventKinds takes() const override {
    return kinds_of<Started, Stepped, Evaluated, Measured, Communicated, Allocated, Checkpointed, Warned,
                    Ended>();
  }
  void take(const Started& e) override {
    add({{"event", "start"}, {"step", e.step}, {"fields", object_in(e.fields)}, {"files", e.files}});
  }
  void take(const Stepped& e) override { scalars(scalars_of(e.metrics), e.samples); }
  void take(const Evaluated& e) override { scalars(scalars_of(e.metrics), e.samples); }
  void take(const Measured& e) override { scalars({&e.scalar, 1}, e.samples); }
  void take(const Communicated& e) override {
    json sums = json::object();
    for (const auto& [name, sum] : e.sums)
      sums[name] = {{"calls", sum.calls}, {"bytes", sum.bytes}, {"seconds", sum.seconds}};
    add({{"event", "collectives"}, {"step", e.step}, {"sums", sums}});
  }
  void take(const Allocated& e) override {
    add({{"event", "memory"}, {"kind", name_of(e.kind)}, {"step", e.step}, {"bytes", e.bytes}});
  }
  void take(const Checkpointed& e) override {
    add({{"event", "checkpoint"},
         {"kind", name_of(e.kind)},
         {"path", path_in_json(e.path)},
         {"step", e.step},
         {"bytes", e.bytes},
         {"seconds", e.seconds}});
  }
  void take(const Warned& e) override { add({{"event", "warning"}, {"text", e.text}}); }
  void take(const Ended& e) override { add({{"event", "end"}, {"fields", object_in(e.fields)}}); }

 private:
  void scalars(std::span<const Scalar> all, int64_t samples) {
    json values = json::object();
    for (const Scalar& s : all) values[s.tag] = value_of(s.value);
    add({{"event", "scalars"}, {"samples", samples}, {"scalars", values}});
  }
  void add(const json& event) {
    std::string text = event.dump(-1, ' ', false, json::error_handler_t::replace);
    const std::lock_guard lock(texts_->mutex);
    if (texts_->waiting.size() < kMostWaiting) texts_->waiting.push_back(std::move(text));
  }
  std::string name_;
  std::shared_ptr<Texts> texts_;
};

std::unique_ptr<Sink> EventQueue::sink(std::string name) const {
  return std::make_unique<Adds>(std::move(name), texts_);
}

std::string EventQueue::take() {
  std::vector<std::string> taken;
  {
    const std::lock_guard lock(texts_->mutex);
    taken.swap(texts_->waiting);
  }
  return fmt::format("[{}]", fmt::join(taken, ","));
}

}  // namespace cleave::monitor
