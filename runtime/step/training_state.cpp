#include "runtime/step/training_state.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/json.h"

namespace cleave::runtime {
using nlohmann::json;
std::string to_json(const TrainingState& at, const optim::LossScaler::State& scaler, uint64_t seed,
                    const std::string& client, const std::map<std::string, std::string>& settings) {
  json j = {{"step", at.step},
            {"applied_steps", at.applied},
            {"skipped_steps", at.skipped},
            {"optimizer_begin", at.optimizer_begin},
            {"seed", seed},
            {"loss_scaler",
             {{"scale", scaler.scale},
              {"iteration", scaler.iteration},
              {"last_overflow", scaler.last_overflow},
              {"hysteresis", scaler.hysteresis}}},
            {"settings", settings},
            {"client", json::parse(client)}};
  if (at.schedule_begin != 0) j["schedule_begin"] = at.schedule_begin;
  if (!at.missed.empty()) j["missed_updates"] = at.missed;
  if (!at.losses.empty()) j["last_losses"] = at.losses;
  return j.dump();
}

std::string to_json(const TrainingState& at, const std::optional<optim::LossScaler::State>& scaler,
                    const std::string& client) {
  json j = json::parse(to_json(at, scaler.value_or(optim::LossScaler::State{}), 0, client));
  j["imported"] = true;
  return j.dump();
}

Restored from_json(const std::string& text, const std::string& where) {
  try {
    const json j = json::parse(text);
    const json& scaler = j.at("loss_scaler");
    Restored r;
    r.at = {counted(j.at("step")), counted(j.at("applied_steps")), counted(j.at("skipped_steps")),
            j.contains("optimizer_begin") ? counted(j["optimizer_begin"], -kMostCounted) : 0,
            j.contains("schedule_begin") ? counted(j["schedule_begin"], -kMostCounted) : 0};
    require(r.at.optimizer_begin <= r.at.applied && r.at.schedule_begin <= r.at.applied &&
                r.at.applied <= r.at.step,
            Exit::checkpoint,
            "{}: the training state in the manifest is damaged (got {} steps, {} of them applied, {} of "
            "these before the "
            "optimizer, expected them to fall); use another checkpoint",
            where, r.at.step, r.at.applied, r.at.optimizer_begin);
    const json missed = j.contains("missed_updates") ? j["missed_updates"] : json::object();
    for (const auto& [name, count] : missed.items()) {
      r.at.missed[name] = counted(count);
      require(r.at.missed[name] <= r.at.applied - r.at.optimizer_begin, Exit::checkpoint,
              "{}: the training state in the manifest is damaged (got {} missed updates of {}, expected at "
              "most {}); use another checkpoint",
              where, r.at.missed[name], name, r.at.applied - r.at.optimizer_begin);
    }
    if (j.contains("last_losses")) r.at.losses = j["last_losses"].get<std::vector<double>>();
    require(std::ranges::all_of(r.at.losses, [](double x) { return std::isfinite(x); }), Exit::checkpoint,
            "{}: the training state in the manifest is damaged (got a loss that is not finite); use another "
            "checkpoint",
            where);
    r.seed = j.at("seed").get_ref<const json::number_unsigned_t&>();
    if (j.contains("settings")) r.settings = j["settings"].get<std::map<std::string, std::string>>();
    r.client = j.at("client").dump();
    r.imported = j.value("imported", false);
    const optim::LossScaler::State was{scaler.at("scale"), counted(scaler.at("iteration")),
                                       counted(scaler.at("last_overflow"), -kMostCounted),
                                       counted(scaler.at("hysteresis"), -kMostCounted)};
    require(was.scale > 0 && std::isfinite(was.scale), Exit::checkpoint,
            "{}: the training state in the manifest is damaged (got {} for the loss scale, expected a number "
            "above 0); "
            "use another checkpoint",
            where, was.scale);
    if (was != optim::LossScaler::State{}) r.scaler = was;  // the default value means no loss scale
    return r;
  } catch (const json::exception&) {
    fail(Exit::checkpoint,
         "{}: the training state in the manifest is damaged: a part of it is missing or malformed", where);
  }
}

}  // namespace cleave::runtime
