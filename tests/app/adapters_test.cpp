// Export of adapters with wrong shapes in the manifest.
#include "app/adapters.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "comm/communicator.h"
#include "runtime/step/training_state.h"
#include "tests/checkpoint/hand_made.h"
#include "tests/scratch.h"

namespace cleave::testing {
namespace {
using nlohmann::json;

using Shapes = std::map<std::string, Shape2>;
const Shapes kGood = {{"h.weight", {3, 4}}, {"h.lora_A.weight", {2, 4}}, {"h.lora_B.weight", {3, 2}}};
const json kLora = {{"targets", {"h"}}, {"rank", 2}, {"alpha", 4.0}, {"use_rslora", false}};

class Adapters : public ::testing::Test {
 protected:
  checkpoint::CheckpointReader saved(const Shapes& shapes, const json& lora = kLora) const {
    std::vector<checkpoint::Record> records;
    for (const auto& [name, shape] : shapes)
      records.push_back(given("master", name, shape, {{0, checkpoint::numel_of(shape)}}));
    const json client = {{"lora", lora}};
    checkpoint::save_checkpoint(scratch_.folder(), "a", records,
                                runtime::to_json({}, std::nullopt, client.dump()),
                                *comm::self_communicator());
    return {scratch_.folder(), "a"};
  }
  void refused(Shapes changes, std::initializer_list<std::string_view> words) const {
    for (const auto& [name, shape] : kGood) changes.emplace(name, shape);
    std::erase_if(changes, [](const auto& change) { return change.second.empty(); });
    const checkpoint::CheckpointReader reader = saved(changes);
    expect_error(Exit::checkpoint, words, [&] { app::MergedWeights(reader, 2); });
    expect_error(Exit::checkpoint, words, [&] {
      app::adapter_names(reader, {.tensors = {{"h.weight", {3, 4}, "h.weight"}}});
    });
  }
  Scratch scratch_;
};

TEST_F(Adapters, AreAddedToTheirWeight) {
  const checkpoint::CheckpointReader reader = saved(kGood);
  const app::MergedWeights merged(reader, 0.5);
  std::vector<float> found;
  merged.read({"master", "h.weight", {3, 4}, {{0, 12}}, {}, [&](Range, Tensor from) {
                 found.assign(from.as<float>(), from.as<float>() + from.numel());
               }});
  for (int64_t row = 0; row < 3; ++row)
    for (int64_t column = 0; column < 4; ++column) {
      float wanted = value_of("h.weight", row * 4 + column);
      for (int64_t k = 0; k < 2; ++k)
        wanted +=
            0.5f * value_of("h.lora_B.weight", row * 2 + k) * value_of("h.lora_A.weight", k * 4 + column);
      EXPECT_EQ(found.at(size_t(row * 4 + column)), wanted);
    }
  EXPECT_EQ(app::adapter_names(reader, {.tensors = {{"h.weight", {3, 4}, "h.weight"}}}).tensors.size(), 2u);
}

TEST_F(Adapters, WithAnotherShapeThanTheirWeightAndRankAreErrors) {
  refused({{"h.lora_A.weight", {2, 3}}},
          {"'h.lora_A.weight' has the wrong shape", "got [2, 3], expected [2, 4]"});
  refused({{"h.lora_A.weight", {2, 5}}}, {"got [2, 5], expected [2, 4]"});
  refused({{"h.lora_A.weight", {8}}}, {"got [8], expected [2, 4]"});
  refused({{"h.lora_A.weight", {2, 2, 2}}}, {"got [2, 2, 2], expected [2, 4]"});
  refused({{"h.lora_A.weight", {4, 4}}, {"h.lora_B.weight", {3, 4}}}, {"got [4, 4], expected [2, 4]"});
  refused({{"h.lora_B.weight", {2, 2}}},
          {"'h.lora_B.weight' has the wrong shape", "got [2, 2], expected [3, 2]"});
  refused({{"h.lora_B.weight", {3, 1}}}, {"got [3, 1], expected [3, 2]"});
  refused({{"h.lora_A.weight", {}}}, {"'h.lora_A.weight' has the wrong shape", "got [], expected [2, 4]"});
  refused({{"h.lora_B.weight", {}}}, {"'h.lora_B.weight' has the wrong shape", "got [], expected [3, 2]"});
  refused({{"h.weight", {}}},
          {": the adapter 'h' has no matching linear layer; use another copy of the checkpoint"});
  refused({{"h.weight", {12}}},
          {": the adapter 'h' has no matching linear layer; use another copy of the checkpoint"});
}

TEST_F(Adapters, OfInvalidRanksAndScalesAreErrors) {
  const auto with = [](const char* key, json value) {
    json facts = {{"lora", kLora}};
    facts["lora"][key] = std::move(value);
    return facts;
  };
  for (const json& rank : {json(0), json(-1), json(65537), json(1e300), json("2"), json(2.0)})
    expect_error(Exit::checkpoint, {"lora.rank", "expected 1 to 65536"},
                 [&] { app::lora_in(with("rank", rank)); });
  for (const double alpha : {0.0, -1.0, 1e300})
    expect_error(Exit::checkpoint, {"lora.alpha"}, [&] { app::lora_in(with("alpha", alpha)); });
  EXPECT_EQ(app::lora_in(with("rank", 3)).rank, 3);
  const checkpoint::CheckpointReader reader = saved(kGood, nullptr);
  expect_error(Exit::checkpoint, {"lora"}, [&] { app::MergedWeights(reader, 2); });
}

}  // namespace
}  // namespace cleave::testing
