// The section "cleave".
#include <gtest/gtest.h>

#include "config_schema/read_config.h"

namespace cleave::config {
namespace {

ReadResult read_own(const std::string& members) {
  return read_ds_config("{\"train_batch_size\": 4,\n" + members + "}", "f", {});
}
std::string own_problems(const std::string& members) { return format(read_own(members).problems); }

TEST(OwnKeys, ExactSumsMakeTheTypesOfGradientsIdle) {
  EXPECT_TRUE(read_own(R"("cleave": {"exact_sums": true, "exact_sums_grid": 40})").config.exact_sums);
  EXPECT_NE(own_problems(R"("cleave": {"exact_sums": true}, "communication_data_type": "fp16")")
                .find("has no effect: cleave.exact_sums"),
            std::string::npos);
  EXPECT_NE(own_problems(R"("cleave": {"exact_sums_grid": 40})").find("has no effect"), std::string::npos);
  const std::string unchecked = R"("bf16": {"enabled": true, "check_grad_overflow": false})";
  EXPECT_NE(own_problems(unchecked).find("false: gradients that are not finite go to the weights"),
            std::string::npos);
  EXPECT_NE(own_problems(unchecked + R"(, "cleave": {"exact_sums": true})").find("has no effect"),
            std::string::npos);
}

TEST(OwnKeys, SelectTheDeviceOfAnOffloadedUpdate) {
  const std::string offload = R"(, "zero_optimization": {"offload_optimizer": {"device": "cpu"}})";
  for (const std::string where : {"auto", "host", "device"}) {
    const auto r = read_own("\"cleave\": {\"offload_update\": \"" + where + "\"}" + offload);
    EXPECT_TRUE(r.ok());
    EXPECT_EQ(name_of(r.config.offload_update), where);
  }
  EXPECT_EQ(read_own("\"steps_per_print\": 1").config.offload_update, OffloadUpdate::automatic);
  const std::string refused = own_problems(R"("cleave": {"offload_update": "gpu"})" + offload);
  for (const char* part : {"cleave.offload_update", "auto", "host", "device", "gpu"})
    EXPECT_NE(refused.find(part), std::string::npos) << refused;
  EXPECT_NE(own_problems(R"("cleave": {"offload_update": "device"})").find("has no effect"),
            std::string::npos);
}

TEST(OwnKeys, SelectGraphsForPasses) {
  for (const std::string use : {"auto", "on", "off"}) {
    const auto r = read_own("\"cleave\": {\"cuda_graphs\": \"" + use + "\"}");
    EXPECT_TRUE(r.ok());
    EXPECT_EQ(name_of(r.config.cuda_graphs), use);
  }
  EXPECT_EQ(read_own("\"steps_per_print\": 1").config.cuda_graphs, Switch::automatic);
  const std::string refused = own_problems(R"("cleave": {"cuda_graphs": true})");
  for (const char* part : {"cleave.cuda_graphs", "\"off\"", "a boolean"})
    EXPECT_NE(refused.find(part), std::string::npos) << refused;
  EXPECT_NE(own_problems(R"("cleave": {"cuda_graphs": "on"},
                          "zero_optimization": {"stage": 1, "offload_optimizer": {"device": "cpu"}})")
                .find("has no effect: state or parameters are offloaded"),
            std::string::npos);
}

TEST(OwnKeys, RollBackIsForCleaveTrain) {
  const std::string text = R"({"train_batch_size": 4, "cleave": {"non_finite": "roll_back"}})";
  const ReadResult train = read_ds_config(text, "f", {.front = Front::train});
  EXPECT_TRUE(train.ok()) << format(train.problems);
  EXPECT_EQ(train.config.non_finite, NonFinite::roll_back);
  const ReadResult script = read_ds_config(text, "f", {.front = Front::scripts});
  EXPECT_NE(format(script.problems)
                .find("cleave.non_finite: \"roll_back\" is not supported in a PyTorch script"),
            std::string::npos)
      << format(script.problems);
}

TEST(OwnKeys, LossSpikesAreFactorsAboveOne) {
  EXPECT_EQ(read_own(R"("cleave": {"loss_spike": 1.5})").config.loss_spike, 1.5);
  EXPECT_NE(own_problems(R"("cleave": {"loss_spike": 1})").find("expected a factor above 1"),
            std::string::npos);
  EXPECT_NE(own_problems(R"("cleave": {"loss_spike_steps": 3})").find("has no effect"), std::string::npos);
  // fp16 skips other steps by its loss scale; the policy is for spikes.
  const std::string skip = R"("fp16": {"enabled": true}, "cleave": {"non_finite": "skip")";
  EXPECT_NE(own_problems(skip + "}").find("has no effect"), std::string::npos);
  EXPECT_EQ(own_problems(skip + R"(, "loss_spike": 2})"), "");
}

TEST(OwnKeys, RecordStepsOfNamedRanks) {
  const auto ranks = [](const std::string& text) {
    return R"("cleave": {"record_steps": {"interval": 2, "ranks": ")" + text + "\"}}";
  };
  const RecordSteps some = read_own(ranks("1,12")).config.record_steps;
  EXPECT_TRUE(some.records(1) && some.records(12));
  EXPECT_FALSE(some.records(0) || some.records(2) || some.records(11));
  EXPECT_TRUE(read_own(R"("cleave": {"record_steps": {"interval": 2}})").config.record_steps.records(7));
  EXPECT_FALSE(read_own("\"steps_per_print\": 1").config.record_steps.records(0));
  for (const char* wrong : {"1,,2", ",1", "a", "all", "1 2"})
    EXPECT_NE(own_problems(ranks(wrong)).find("expected numbers of ranks"), std::string::npos) << wrong;
}

TEST(OwnKeys, EnableTf32InFp32Only) {
  EXPECT_FALSE(read_own("\"steps_per_print\": 1").config.tf32);
  EXPECT_TRUE(read_own(R"("cleave": {"tf32": true})").config.tf32);
  EXPECT_NE(own_problems(R"("cleave": {"tf32": true}, "bf16": {"enabled": true})").find("has no effect"),
            std::string::npos);
}

TEST(OwnKeys, SelectTheTypeAndNumberOfLogits) {
  for (const std::string type : {"auto", "fp32", "model"}) {
    const auto r = read_own(R"("bf16": {"enabled": true}, "cleave": {"logits_dtype": ")" + type +
                            R"(", "logits_rows": 1024})");
    EXPECT_TRUE(r.ok());
    EXPECT_EQ(name_of(r.config.logits_dtype), type);
    EXPECT_EQ(r.config.logits_rows, 1024);
  }
  const DsConfig open = read_own("\"steps_per_print\": 1").config;
  EXPECT_EQ(open.logits_dtype, LogitsType::automatic);
  EXPECT_EQ(open.logits_rows, 0);
  EXPECT_NE(own_problems(R"("cleave": {"logits_dtype": "fp32"})").find("has no effect: the model is fp32"),
            std::string::npos);
  const std::string refused = own_problems(R"("cleave": {"logits_dtype": "bf16", "logits_rows": -1})");
  for (const char* part : {"cleave.logits_dtype", "model", "bf16", "cleave.logits_rows", "-1"})
    EXPECT_NE(refused.find(part), std::string::npos) << refused;
}

TEST(OwnKeys, SelectTheAverageOfLosses) {
  EXPECT_EQ(read_own("\"steps_per_print\": 1").config.loss_average, LossAverage::targets);
  EXPECT_EQ(read_own(R"("cleave": {"loss_average": "micro_batches"})").config.loss_average,
            LossAverage::micro_batches);
  EXPECT_NE(own_problems(R"("cleave": {"loss_average": "micro"})").find("\"micro_batches\""),
            std::string::npos);
}

TEST(OwnKeys, SelectFrozenParametersByAListOrOnePattern) {
  const auto patterns = [](const std::string& value) {
    return read_own(R"("cleave": {"freeze": )" + value + "}").config.freeze;
  };
  EXPECT_EQ(patterns("[]"), std::vector<std::string>());
  EXPECT_EQ(patterns("\"*.mlp.*\""), (std::vector<std::string>{"*.mlp.*"}));
  EXPECT_EQ(patterns(R"(["wte.*", "h.0.*"])"), (std::vector<std::string>{"wte.*", "h.0.*"}));
  EXPECT_NE(own_problems(R"("cleave": {"freeze": true})").find("or a single string"), std::string::npos);
}

TEST(OwnKeys, SelectLinearLayersWithAdaptersAndTheirSize) {
  const auto lora = [](const std::string& members) {
    const auto r = read_own(R"("cleave": {"lora": {)" + members + "}}");
    EXPECT_TRUE(r.ok()) << members;
    return r.config.lora;
  };
  EXPECT_TRUE(lora("").targets.empty());
  EXPECT_EQ(lora(R"("targets": "all-linear")").targets, (std::vector<std::string>{"all-linear"}));
  EXPECT_EQ(lora(R"("targets": ["q_proj", "v_proj"])").targets,
            (std::vector<std::string>{"q_proj", "v_proj"}));
  EXPECT_EQ(lora(R"("targets": "q_proj")").scale(), 1);
  EXPECT_EQ(lora(R"("targets": "q_proj", "rank": 4, "alpha": 6)").scale(), 1.5);
  EXPECT_EQ(lora(R"("targets": "q_proj", "rank": 4, "alpha": 6, "use_rslora": true)").scale(), 3);
  EXPECT_EQ(lora(R"("targets": "q_proj", "dropout": 0, "use_dora": false)").rank, 8);
  const std::pair<const char*, const char*> wrong[] = {
      {R"("rank": 4)", "cleave.lora: has no targets"},
      {R"("targets": "q_proj", "rank": 0)", "cleave.lora.rank"},
      {R"("targets": "q_proj", "alpha": 0)", "cleave.lora.alpha"},
      {R"("targets": "q_proj", "r": 4)", "did you mean \"rank\"?"},
      {R"("targets": "q_proj", "lora_alpha": 4)", "did you mean \"alpha\"?"},
      {R"("target_modules": "q_proj")", "did you mean \"targets\"?"},
      {R"("targets": "q_proj", "dropout": 0.1)", "no adapter dropout"},
      {R"("targets": "q_proj", "use_dora": true)", "no DoRA"},
      {R"("targets": "q_proj"}, "freeze": ["wte.*"], "x": {)",
       "cleave.lora freezes all parameters except its adapters"}};
  for (const auto& [members, says] : wrong)
    EXPECT_NE(own_problems(std::string(R"("cleave": {"lora": {)") + members + "}}").find(says),
              std::string::npos)
        << members << "\n"
        << own_problems(std::string(R"("cleave": {"lora": {)") + members + "}}");
}

TEST(OwnKeys, SelectTheScalingOfFp8Operands) {
  const auto fp8 = [](const std::string& members) {
    const auto r = read_own(R"("bf16": {"enabled": true}, "cleave": {"fp8": {)" + members + "}}");
    EXPECT_TRUE(r.ok()) << members;
    return r.config.fp8;
  };
  EXPECT_FALSE(fp8(""));
  EXPECT_EQ(fp8(R"("scaling": "row")").scaling, Fp8Scaling::row);
  EXPECT_EQ(fp8(R"("scaling": "delayed")").history, 16);
  EXPECT_EQ(fp8(R"("scaling": "delayed", "history": 1024)").history, 1024);
  EXPECT_NE(own_problems(R"("cleave": {"fp8": {"scaling": "delayed"}})").find("set bf16.enabled to true"),
            std::string::npos);
  const std::string bf16 = R"("bf16": {"enabled": true}, "cleave": {"fp8": {)";
  EXPECT_NE(
      own_problems(bf16 + R"("scaling": "row", "history": 3}})").find("cleave.fp8.scaling is not delayed"),
      std::string::npos);
  for (const char* members : {R"("scaling": "tensor")", R"("scaling": "delayed", "history": 0)",
                              R"("scaling": "delayed", "history": 1025)", R"("enabled": true)"})
    EXPECT_NE(own_problems(bf16 + members + "}}").find("cleave.fp8"), std::string::npos) << members;
}

TEST(OwnKeys, SelectWeightDecayByAListOrOneWord) {
  const std::string decay = R"("optimizer": {"type": "AdamW", "params": {"lr": 1, "weight_decay": 0.1}}, )";
  const auto words = [&](const std::string& value) {
    const auto r = read_own(decay + R"("cleave": {"weight_decay_on": )" + value + "}");
    EXPECT_TRUE(r.ok());
    return r.config.weight_decay_on;
  };
  EXPECT_EQ(read_own(decay + "\"steps_per_print\": 1").config.weight_decay_on,
            (std::vector<std::string>{"matrices"}));
  EXPECT_EQ(words("\"all\""), (std::vector<std::string>{"all"}));
  EXPECT_EQ(words(R"(["matrices", "*.bias"])"), (std::vector<std::string>{"matrices", "*.bias"}));
  for (const char* wrong : {"true", "3", "[1]", "{}"})
    EXPECT_NE(
        own_problems(decay + R"("cleave": {"weight_decay_on": )" + wrong + "}").find("or a single string"),
        std::string::npos)
        << wrong;
  EXPECT_NE(own_problems(R"("optimizer": {"type": "AdamW", "params": {"lr": 1, "weight_decay": 0}},
                           "cleave": {"weight_decay_on": "all"})")
                .find("has no effect: optimizer.params.weight_decay is 0"),
            std::string::npos);
}

TEST(OwnKeys, MeasureProductsUnlessSumsAreExact) {
  const DsConfig c = read_own("\"steps_per_print\": 1").config;
  EXPECT_TRUE(c.tune_products);
  EXPECT_EQ(c.product_choices, "");
  EXPECT_FALSE(read_own(R"("cleave": {"tune_products": false})").config.tune_products);
  EXPECT_EQ(read_own(R"("cleave": {"product_choices": "run.jsonl"})").config.product_choices, "run.jsonl");
  EXPECT_NE(own_problems(R"("cleave": {"tune_products": false, "exact_sums": true})").find("has no effect"),
            std::string::npos);
}

TEST(OwnKeys, AllowAnyOrderIn16BitsOnly) {
  EXPECT_TRUE(read_own("\"steps_per_print\": 1").config.deterministic);
  EXPECT_FALSE(
      read_own(R"("cleave": {"deterministic": false}, "bf16": {"enabled": true})").config.deterministic);
  EXPECT_NE(own_problems(R"("cleave": {"deterministic": false})").find("has no effect"), std::string::npos);
}

// The module of a script is computed by torch, unless cleave.native is true.
TEST(OwnKeys, OfTheEnginesLayersAreErrorsInScriptsAndThoseOfDeepSpeedWarnings) {
  const auto problems = [](const std::string& sections, Front front) {
    return format(
        read_ds_config(R"({"train_batch_size": 1, )" + sections + "}", "f", {.front = front}).problems);
  };
  const std::string rows = R"("cleave": {"logits_rows": 8})",
                    interval = R"("activation_checkpointing": {"interval": 1})";
  EXPECT_NE(problems(rows, Front::scripts)
                .find("error: f:1:36: cleave.logits_rows: is not supported in this PyTorch"),
            std::string::npos)
      << problems(rows, Front::scripts);
  EXPECT_NE(problems(interval, Front::scripts)
                .find("warning: f:1:54: activation_checkpointing.interval: has no effect"),
            std::string::npos)
      << problems(interval, Front::scripts);
  for (const std::string& section : {rows, interval}) EXPECT_EQ(problems(section, Front::train), "");
  EXPECT_EQ(problems(R"("cleave": {"logits_rows": 8, "native": true}, )" + interval, Front::scripts), "");
  EXPECT_EQ(
      problems(R"("activation_checkpointing": {"interval": 0}, "cleave": {"tf32": false})", Front::scripts),
      "")
      << "disabled keys";
  for (const char* native : {"false", "true"})
    EXPECT_NE(
        problems(fmt::format(R"("cleave": {{"weight_decay_on": "all", "native": {}}},
        "optimizer": {{"type": "AdamW", "params": {{"lr": 1, "weight_decay": 1}}}})",
                             native),
                 Front::scripts)
            .find("cleave.weight_decay_on: is not supported in this PyTorch script: the parameter groups"),
        std::string::npos);
  const std::string copies = R"("cleave": {"copies_in_memory": true})";
  EXPECT_NE(
      problems(copies, Front::scripts)
          .find("cleave.copies_in_memory: is not supported in this PyTorch script: the engine cannot take "
                "the script's own state back"),
      std::string::npos);
  EXPECT_EQ(problems(copies, Front::train), "");
}

}  // namespace
}  // namespace cleave::config
