#include "runtime/step/training_state.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/scratch.h"

namespace cleave::testing {
namespace {

// All fields differ, to detect swapped ones.
const runtime::TrainingState kAt{
    .step = 11, .applied = 7, .skipped = 4, .optimizer_begin = 3, .schedule_begin = 2, .missed = {{"w", 2}}};
const optim::LossScaler::State kScaler{.scale = 512, .iteration = 10, .last_overflow = 6, .hysteresis = 2};

TEST(TrainingState, IsReadAsItWasWrittenFieldByField) {
  const runtime::Restored r =
      runtime::from_json(runtime::to_json(kAt, kScaler, 99, R"({"note":"kept"})"), "here");
  EXPECT_EQ(r.at.step, kAt.step);
  EXPECT_EQ(r.at.applied, kAt.applied);
  EXPECT_EQ(r.at.skipped, kAt.skipped);
  EXPECT_EQ(r.at.optimizer_begin, kAt.optimizer_begin);
  EXPECT_EQ(r.at.schedule_begin, kAt.schedule_begin);
  EXPECT_EQ(r.at.missed, kAt.missed);
  EXPECT_EQ(r.scaler, kScaler);
  EXPECT_EQ(r.seed, 99u);
  EXPECT_EQ(r.client, R"({"note":"kept"})");
}

TEST(TrainingState, WithoutAFieldIsRefusedWithItsPlace) {
  const nlohmann::json whole = nlohmann::json::parse(runtime::to_json(kAt, kScaler, 99, "{}"));
  const auto refused = [](const nlohmann::json& j) {
    expect_error(Exit::checkpoint, {"a/manifest.json", "training state", "damaged"},
                 [&] { runtime::from_json(j.dump(), "a/manifest.json"); });
  };
  for (const auto& [name, value] : whole.items()) {
    if (name == "optimizer_begin" || name == "schedule_begin") continue;  // absent in old checkpoints: 0
    nlohmann::json j = whole;
    j.erase(name);
    if (name != "settings" && name != "missed_updates") refused(j);  // absent in old checkpoints, too
    if (name == "client") continue;                                  // arbitrary text of its owner
    j[name] = "text";
    refused(j);
  }
  for (const auto& [name, value] : whole["loss_scaler"].items()) {
    nlohmann::json j = whole;
    j["loss_scaler"].erase(name);
    refused(j);
  }
  for (const char* name : {"step", "applied_steps", "skipped_steps", "seed"})
    for (const nlohmann::json& number :
         {nlohmann::json(-1), nlohmann::json(1e300), nlohmann::json(INT64_MIN)}) {
      nlohmann::json j = whole;
      j[name] = number;
      refused(j);
    }
  for (const char* name : {"optimizer_begin", "schedule_begin"})
    for (const nlohmann::json& number :
         {nlohmann::json(8), nlohmann::json(1e300), nlohmann::json(INT64_MIN)}) {
      nlohmann::json j = whole;
      j[name] = number, j.erase("missed_updates");  // which are compared with the difference
      refused(j);
    }
  for (const auto& [name, number] :
       {std::pair{"step", 6}, {"applied_steps", 2}}) {  // fewer than a part of them
    nlohmann::json j = whole;
    j[name] = number, j.erase("missed_updates");
    refused(j);
  }
  for (const nlohmann::json& count : {nlohmann::json(-1), nlohmann::json(5), nlohmann::json("text")}) {
    nlohmann::json j = whole;
    j["missed_updates"]["w"] = count;
    refused(j);
  }
  for (const double scale : {0.0, -1.0}) {
    nlohmann::json j = whole;
    j["loss_scaler"]["scale"] = scale;
    refused(j);
  }
  nlohmann::json old = whole;
  old.erase("optimizer_begin"), old.erase("schedule_begin");
  EXPECT_EQ(runtime::from_json(old.dump(), "here").at.optimizer_begin, 0);
}

}  // namespace
}  // namespace cleave::testing
