#include "app/run/best.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "core/json.h"

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
    step_ = counted(j.at("step"), -1), loss_ = j.at("loss");
    last_ = counted(j.at("last"), -1), waited_ = counted(j.at("waited"));
  } catch (const nlohmann::json::exception&) {
    *this = Best(patience_);
  }
}

}  // namespace cleave::app
