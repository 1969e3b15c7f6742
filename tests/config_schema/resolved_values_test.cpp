#include "config_schema/resolved_values.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "config_schema/summary.h"

namespace cleave::config {
namespace {

ReadResult read_text(const char* text) { return read_ds_config(text, "f", {}); }

constexpr const char* kSecret = R"({"train_batch_size": 4, // a comment
  "comet": {"enabled": false, "api_key": "hush"},
  "cleave": {"mlflow": {"enabled": true, "tracking_uri": "http://me:hush@host/x"}}})";

TEST(ResolvedValues, AreTheEffectiveValuesByPath) {
  const nlohmann::json values =
      resolved_values(read_text(R"({"train_batch_size": 4, "fp16": {"enabled": true}})"));
  EXPECT_EQ(values.at("train_batch_size"), 4);
  EXPECT_EQ(values.at("fp16.enabled"), true);
  EXPECT_EQ(values.at("zero_optimization.stage"), 0);
}

TEST(ResolvedValues, AndTheTextOfAConfigurationContainNoSecret) {
  const ReadResult read = read_text(kSecret);
  ASSERT_TRUE(read.ok()) << format(read.problems);
  EXPECT_EQ(read.config.mlflow.tracking_uri, "http://me:hush@host/x");
  for (const std::string& text :
       {resolved_values(read).dump(), shared_text(read), differences(read), format(read.notes)})
    EXPECT_EQ(text.find("hush@"), std::string::npos) << text;
  const auto shared = nlohmann::json::parse(shared_text(read));
  EXPECT_EQ(shared["comet"]["api_key"], "masked");
  EXPECT_EQ(shared["cleave"]["mlflow"]["tracking_uri"], "http://me:masked@host/x");
  EXPECT_EQ(shared["train_batch_size"], 4);
}

}  // namespace
}  // namespace cleave::config
