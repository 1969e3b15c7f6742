#include "app/run/best.h"

#include <cmath>
#include <nlohmann/json.hpp>

namespace cleave::app {

bool Best::take(int64_t step, double loss) {
  if (step == last_) return step == step_;
  last_ = step;
  const bool first = step_ < 0, number = std::isfinite(loss);
  const bool brings = number && (first || loss < loss_ - patience_.threshold);
  waited_ = brings ? 0 : waited_ + 1;
  const bool smallest = number && (first || loss < loss_);
  if (smallest) step_ = step, loss_ = loss;
  return smallest;
}

nlohmann::json Best::json() const {
  return {{"step", step_}, {"loss", loss_}, {"last", last_}, {"waited", waited_}};
}

void Best::restore(const nlohmann::json& facts) {
  if (!facts.is_object() || !facts.contains("best")) return;
  const nlohmann::json& j = facts["best"];
  try {
    step_ = j.at("step"), loss_ = j.at("loss"), last_ = j.at("last"), waited_ = j.at("waited");
  } catch (const nlohmann::json::exception&) {
    *this = Best(patience_);
  }
}

}  // namespace cleave::app
