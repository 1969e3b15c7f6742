// Effects of known keys that are unsupported, or supported without effect.
#include <gtest/gtest.h>

#include "config_schema/keys.h"
#include "config_schema/read_config.h"

namespace cleave::config {
namespace {

std::string status_problems(const std::string& members) {
  return format(read_ds_config("{\"train_batch_size\": 4,\n" + members + "}", "f", {}).problems);
}

// Returns {"a": {"b": value}} for the path a.b, with names for <name> and one item for a list.
std::string nest(const std::string& path, const std::string& value) {
  std::string open, close;
  size_t begin = 0;
  while (begin <= path.size()) {
    const size_t end = std::min(path.find('.', begin), path.size());
    std::string name = path.substr(begin, end - begin);
    const bool list = name.ends_with("[]");
    if (list) name.resize(name.size() - 2);
    if (name.starts_with("<")) name = "some_name";
    open += "\"" + name + "\": " + (end < path.size() ? (list ? "[{" : "{") : "");
    if (end < path.size()) close = (list ? "}]" : "}") + close;
    begin = end + 1;
  }
  return open + value + close;
}

// Returns the key with this value in a configuration that reads it.
std::string members_with(const Key& key, const std::string& value) {
  std::string members = nest(key.path, value);
  if (key.path.starts_with("zero_optimization."))
    return members.insert(members.find('{') + 1, "\"stage\": 3, ");
  if (key.path.starts_with("fp16.") || key.path.starts_with("bf16.") || key.path.starts_with("nebula."))
    members.insert(members.find('{') + 1, "\"enabled\": true, ");
  return members;
}

// Returns a value of the key's type that is neither its default nor off.
std::string other_value(const Key& key) {
  switch (key.type) {
    case Type::boolean:
      return key.default_text == "true" ? "false" : "true";
    case Type::integer:
      return "37";
    case Type::number:
      return "0.37";
    case Type::text:
      return key.choices.empty() ? "\"some text\"" : "\"" + key.choices.back() + "\"";
    case Type::list:
      return "[37]";
    case Type::object:
      return "{\"_\": 1}";
    case Type::any:
      return "37";
  }
  return "";
}

TEST(Status, EveryUnsupportedKeyIsAnErrorAndItsDisabledFormAccepted) {
  DsConfig config;
  config.zero.stage = 3;
  int tried = 0;
  for (const Key& key : describe(config)) {
    if (key.status != Status::refused || key.listed_only) continue;
    if (key.path.starts_with("optimizer.") || key.path.starts_with("scheduler.")) continue;
    EXPECT_EQ(status_problems(members_with(key, key.default_text)), "") << key.path;
    const std::string refusal = status_problems(members_with(key, other_value(key)));
    EXPECT_NE(refusal.find("error: "), std::string::npos) << key.path;
    EXPECT_NE(refusal.find(key.path + ": "), std::string::npos) << refusal;
    EXPECT_NE(refusal.find("is not supported"), std::string::npos) << refusal;
    ++tried;
  }
  EXPECT_GE(tried, 38);
}

TEST(Status, KeysWithoutEffectAreAcceptedSilently) {
  DsConfig config;
  config.zero.stage = 3;
  int tried = 0;
  for (const Key& key : describe(config)) {
    if (key.status != Status::no_effect || key.path.starts_with("optimizer.") ||
        key.path == "data_parallel_size" || key.path == "data_types.param_dtype" ||
        key.path == "autotuning.enabled")
      continue;
    EXPECT_EQ(status_problems(members_with(key, other_value(key))), "") << key.path;
    ++tried;
  }
  EXPECT_GE(tried, 40);
}

TEST(Status, RefusalsInsideTheOptimizerAndTheSchedule) {
  EXPECT_EQ(status_problems(R"("optimizer": {"type": "Adam", "params": {"amsgrad": true}})"),
            "error: f:2:53: optimizer.params.amsgrad: true is not supported: no AMSGrad variant; remove "
            "it or set it to false\n");
  EXPECT_EQ(status_problems(R"("optimizer": {"type": "Adam", "params": {"amsgrad": false}})"), "");
  EXPECT_EQ(status_problems(R"("scheduler": {"type": "WarmupLR", "params": {"last_batch_iteration": -1}})"),
            "");
  EXPECT_NE(status_problems(R"("scheduler": {"type": "WarmupLR", "params": {"last_batch_iteration": 5}})"),
            "");
}

TEST(Status, StatesInSixteenBitsAreAWarningWithTheAdditionalBytes) {
  const std::string kept = "which takes 2 bytes more per parameter",
                    ranks = ", divided by the data-parallel ranks; the plan counts them\n";
  EXPECT_EQ(
      status_problems(
          R"("bf16": {"enabled": true, "bf16_master_weights_and_grads": true, "bf16_optimizer_states": true})"),
      "warning: f:2:60: bf16.bf16_master_weights_and_grads: is not supported: masters stay in fp32, " + kept +
          ranks +
          "warning: f:2:91: bf16.bf16_optimizer_states: is not supported: optimizer states stay in fp32, " +
          kept + " and state (4 with Adam)" + ranks);
  EXPECT_EQ(status_problems(R"("fp16": {"enabled": true, "fp16_master_weights_and_grads": true})"),
            "warning: f:2:60: fp16.fp16_master_weights_and_grads: is not supported: masters stay in fp32, " +
                kept + ranks);
  EXPECT_EQ(status_problems(R"("bf16": {"enabled": false, "bf16_master_weights_and_grads": true})"), "");
}

TEST(Status, AnUnsupportedMonitorIsNotAcceptedSilently) {
  EXPECT_NE(status_problems(R"("comet": {"enabled": true, "project": "p"})").find("error"),
            std::string::npos);
  EXPECT_EQ(status_problems(R"("comet": {"enabled": false, "project": "p"})"), "");
  EXPECT_EQ(status_problems(R"("comms_logger": {"enabled": false, "verbose": true})"), "");
}

TEST(Status, WeightsAndBiasesIsForScriptsAndAnErrorInTheProgram) {
  const auto read = [](Front front, const char* section) {
    return read_ds_config(std::string("{\"train_batch_size\": 4, ") + section + "}", "f", {.front = front});
  };
  constexpr const char* kOn = R"("wandb": {"enabled": true, "project": "p", "team": null})";
  const ReadResult script = read(Front::scripts, kOn);
  EXPECT_EQ(format(script.problems), "");
  EXPECT_EQ(script.config.wandb.project, "p");
  EXPECT_EQ(script.config.wandb.team, "");
  EXPECT_EQ(format(read(Front::train, kOn).problems),
            "error: f:1:35: wandb.enabled: is not supported in cleave train: only PyTorch scripts write to "
            "Weights & "
            "Biases; set cleave.mlflow, tensorboard or csv_monitor\n");
  EXPECT_EQ(format(read(Front::train, R"("wandb": {"enabled": false, "project": "p"})").problems), "");
}

TEST(Status, TheCollectiveLogIsOnWithItsSectionUnlessFalse) {
  const auto logs = [](const char* section) {
    return read_ds_config(std::string("{\"train_batch_size\": 4, ") + section + "}", "f", {})
        .config.comms_logger.enabled;
  };
  EXPECT_TRUE(logs(R"("comms_logger": {})"));
  EXPECT_TRUE(logs(R"("comms_logger": {"verbose": true})"));
  EXPECT_TRUE(logs(R"("comms_logger": {"enabled": true})"));
  EXPECT_FALSE(logs(R"("comms_logger": {"enabled": false, "verbose": true})"));
  EXPECT_FALSE(logs(R"("comms_logger": null)"));
  EXPECT_FALSE(logs(R"("dump_state": false)"));
}

TEST(Status, NamesOfCollectivesAreChecked) {
  EXPECT_EQ(status_problems(
                R"("comms_logger": {"prof_all": false, "prof_ops": ["all_reduce", "all_gather_base"]})"),
            "");
  const std::string said = status_problems(R"("comms_logger": {"prof_ops": ["allreduce"]})");
  EXPECT_NE(said.find("error: f:2:30: comms_logger.prof_ops: expected a list of \"all_reduce\""),
            std::string::npos)
      << said;
  EXPECT_NE(status_problems(R"("comms_logger": {"prof_ops": "all_reduce"})").find("error"),
            std::string::npos);
}

TEST(Status, AKeyThatIsIdleInThisCombinationNamesTheOtherKey) {
  EXPECT_EQ(status_problems(R"("zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}})"),
            "warning: f:2:53: zero_optimization.offload_param.device: has no effect: "
            "zero_optimization.stage is 2; "
            "stage 3 offloads parameters\n");
  EXPECT_EQ(status_problems(R"("zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}})"), "");
  EXPECT_EQ(status_problems(
                R"("zero_optimization": {"stage": 3, "offload_param": {"device": "cpu", "max_in_cpu": 5}})"),
            "warning: f:2:70: zero_optimization.offload_param.max_in_cpu: has no effect: "
            "zero_optimization.offload_param.device is cpu; only nvme reads this key\n");
  EXPECT_EQ(status_problems(R"("fp16": {"enabled": true, "loss_scale": 128, "loss_scale_window": 7})"),
            "warning: f:2:46: fp16.loss_scale_window: has no effect: fp16.loss_scale is fixed\n");
  EXPECT_EQ(status_problems(R"("fp16": {"enabled": true, "hysteresis": 4})"), "");
  EXPECT_EQ(
      status_problems(
          R"("fp16": {"enabled": true, "hysteresis": 4}, "cleave": {"deepspeed_stage0_loss_scale": true})"),
      "warning: f:2:27: fp16.hysteresis: has no effect: cleave.deepspeed_stage0_loss_scale is true\n");
}

TEST(Status, ValuesOfADisabledSectionAndDefaultsHaveNoEffect) {
  EXPECT_EQ(status_problems(R"("fp16": {"enabled": false, "loss_scale": 128, "loss_scale_window": 7})"), "");
  EXPECT_EQ(status_problems(R"("fp16": {"enabled": true, "hysteresis": 2})"), "");
  EXPECT_EQ(status_problems(R"("zero_optimization": {"stage": 1, "stage3_max_live_parameters": 1e9})"), "");
}

TEST(Status, ParametersOnDiskNeedAFolder) {
  EXPECT_EQ(status_problems(R"("zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}})"),
            "error: f:2:53: zero_optimization.offload_param.device: \"nvme\" needs nvme_path: a folder "
            "on a local disk, the same on every host\n");
  EXPECT_EQ(
      status_problems(
          R"("zero_optimization": {"stage": 3, "offload_param": {"device": "nvme", "nvme_path": "/x", "buffer_count": 9}})"),
      "");
  const std::string nvme =
      R"("zero_optimization": {"stage": 3, "offload_param": {"device": "nvme", "nvme_path": "/x"}})";
  EXPECT_EQ(status_problems(nvme + R"(, "aio": {"block_size": 8192, "queue_depth": 4})"), "");
  EXPECT_NE(status_problems(nvme + R"(, "aio": {"block_size": 5000})").find("multiple of 4096"),
            std::string::npos);
}

TEST(Status, NvmeNeedsAFolderAndBlocksThatADiskCanTake) {
  EXPECT_EQ(
      status_problems(R"("zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme"}})"),
      "error: f:2:57: zero_optimization.offload_optimizer.device: \"nvme\" needs nvme_path: a folder on a "
      "local disk, the same on every host\n");
  const std::string nvme =
      R"("zero_optimization": {"offload_optimizer": {"device": "nvme", "nvme_path": "/x"}})";
  EXPECT_EQ(
      status_problems(nvme + R"(, "aio": {"block_size": 8192, "queue_depth": 4, "single_submit": true})"),
      "");
  EXPECT_NE(status_problems(nvme + R"(, "aio": {"block_size": 5000})").find("multiple of 4096"),
            std::string::npos);
  EXPECT_NE(status_problems(nvme + R"(, "aio": {"use_gds": true})").find("host memory"), std::string::npos);
  for (const char* ratio : {"-0.1", "1.5"})
    EXPECT_NE(status_problems(R"("zero_optimization": {"offload_optimizer": {"device": "cpu", "ratio": )" +
                              std::string(ratio) + "}}")
                  .find("from 0 to 1"),
              std::string::npos);
}

TEST(Status, PiecesOfStateOnDiskHaveAMinimumSizeWithAWarning) {
  const auto read = [](const std::string& home, int64_t size) {
    return read_ds_config(
        fmt::format("{{\"train_batch_size\": 4,\n\"zero_optimization\": {{\"sub_group_size\": {}, "
                    "\"stage\": 1, \"offload_optimizer\": {}}}}}",
                    size, home),
        "f", {});
  };
  const std::string disk = R"({"device": "nvme", "nvme_path": "/x"})", memory = R"({"device": "cpu"})";
  for (const int64_t size : {1, 100, 65535}) {
    const ReadResult r = read(disk, size);
    EXPECT_EQ(format(r.problems),
              fmt::format("warning: f:2:23: zero_optimization.sub_group_size: {} is below the tile of 65536 "
                          "elements on disk, which is used instead: smaller tiles take a disk as long\n",
                          size));
    EXPECT_EQ(r.config.zero.sub_group_size, 65536);
  }
  for (const int64_t size : {65536, 65537, 1 << 30}) {
    const ReadResult r = read(disk, size);
    EXPECT_EQ(format(r.problems), "");
    EXPECT_EQ(r.config.zero.sub_group_size, size);
  }
  const ReadResult r = read(memory, 100);
  EXPECT_EQ(r.config.zero.sub_group_size, 100);
  EXPECT_NE(format(r.problems).find("has no effect: optimizer states are in memory"), std::string::npos);
}

// Defaults and limits of DeepSpeed 0.19.8's config classes.
TEST(Status, KeysOfDeepSpeed0198AreFineAtTheirDefaults) {
  for (const char* members :
       {R"("disable_python_gc": true)", R"("data_types": {"keep_in_fp32_modules": "auto"})",
        R"("data_types": {"keep_in_fp32_modules": []})",
        R"("zero_optimization": {"stage": 1, "compute_grad_norm": true, "parameter_alignment": false})",
        R"("zero_optimization": {"stage": 2, "compute_grad_norm": false, "parameter_alignment": true})",
        R"("tensor_parallel": {"vocab_parallel_lm_head": null, "vocab_parallel_ce_backend": "torch"})",
        R"("tensor_parallel": {"vocab_parallel_lm_head": true, "vocab_parallel_ce_backend": "liger"})",
        R"("compile": {"deepcompile": false, "autoep_non_moe": false, "passes": ["z1", "autotp"]})",
        R"("expert_parallel": {"enabled": false, "async_split_plan": false, "row_weighting_impl": "auto",
           "gate_up_impl": "separate", "comm_backend": "comm", "comm_num_sm": 12, "comm_qp_margin": 4,
           "comm_max_tokens_per_rank": 0, "expert_activation": null, "combine_impl": "fused_weighted_sum",
           "preset_model": "minimax_m3"})",
        R"("hybrid_engine": {"enabled": false, "max_out_tokens": 1})",
        R"("optimizer": {"type": "AdamW", "params": {"max_grad_norm": 0.0}})",
        R"("eigenvalue": {"enabled": false})", R"("checkpoint": {"writer": {"type": null}})"})
    EXPECT_EQ(status_problems(members), "") << members;
  const std::pair<const char*, const char*> wrong[] = {
      {R"("data_types": {"keep_in_fp32_modules": ["e_score"]})", "set it to \"auto\" or []"},
      {R"("tensor_parallel": {"vocab_parallel_ce_backend": "x"})", "expected one of \"torch\", \"liger\""},
      {R"("zero_optimization": {"reduce_bucket_size": 0})", "expected an integer from 1 to"},
      {R"("zero_optimization": {"reduce_bucket_size": 1e30})", "expected an integer from 1 to"},
      {R"("zero_optimization": {"allgather_bucket_size": 1e30})", "expected an integer from 0 to"},
      {R"("compile": {"passes": ["z9"]})", "expected a list of \"z1\", \"z3\", \"autosp\", \"autotp\""},
      {R"("hybrid_engine": {"enabled": false, "max_out_tokens": 0})", "expected an integer of at least 1"},
      {R"("optimizer": {"type": "AdamW", "params": {"max_grad_norm": 1.0}})", "gradient_clipping"}};
  for (const auto& [members, says] : wrong)
    EXPECT_NE(status_problems(members).find(says), std::string::npos) << status_problems(members);
}

// The lists in runtime/config.py of DeepSpeed 0.19.8.
TEST(Status, KeysThatDeepSpeedHasRemovedAreNotedOnceEach) {
  for (const char* key :
       {"nebula", "compression_training", "amp", "quantize_training", "eigenvalue", "sparse_attention",
        "elasticity", "curriculum_learning", "progressive_layer_drop"}) {
    const ReadResult r =
        read_ds_config(fmt::format("{{\"train_batch_size\": 4,\n\"{}\": {{}}}}", key), "f", {});
    ASSERT_EQ(r.elsewhere.size(), 1u) << key;
    EXPECT_EQ(r.elsewhere[0].where, "f:2:1");
    EXPECT_EQ(r.elsewhere[0].path, key);
    EXPECT_EQ(format(r.problems), "");
  }
  const ReadResult r = read_ds_config(
      R"({"train_batch_size": 4, "sparse_gradients": false, "graph_harvesting": false, "zero_optimization": {
          "stage": 3, "mics_shard_size": -1, "mics_hierarchical_params_gather": false, "zeropp_loco_param": null}})",
      "f", {.strict = true});
  EXPECT_TRUE(r.ok()) << format(r.problems);
  EXPECT_EQ(r.elsewhere.size(), 5u);
  EXPECT_TRUE(read_ds_config(R"({"train_batch_size": 4, "data_efficiency": {}})", "f", {}).elsewhere.empty());
}

TEST(Status, ArgumentsOfTorchAdamAreAcceptedWithoutEffect) {
  const auto adam = [](const char* type, const char* params) {
    return status_problems(fmt::format(R"("optimizer": {{"type": "{}", "params": {{{}}}}})", type, params));
  };
  const char* harmless =
      R"("fused": true, "foreach": null, "maximize": false, "capturable": true, "differentiable": false)";
  for (const char* type : {"Adam", "AdamW"}) {
    EXPECT_EQ(adam(type, harmless), "");
    EXPECT_EQ(adam(type, R"("decoupled_weight_decay": true)"), "");
    EXPECT_NE(adam(type, R"("maximize": true)").find("training minimizes the loss"), std::string::npos);
    EXPECT_NE(adam(type, R"("decoupled_weight_decay": false)").find("\"adam_w_mode\": false"),
              std::string::npos);
  }
  EXPECT_EQ(adam("Adam", R"("adam_w_mode": false, "decoupled_weight_decay": false)"), "");
  EXPECT_NE(
      adam("Adam", R"("adam_w_mode": false, "decoupled_weight_decay": true)").find("set \"adam_w_mode\" to"),
      std::string::npos);
}

TEST(Status, FreeFormSectionsTakeAnyName) {
  EXPECT_EQ(status_problems(R"("amp": {"enabled": false, "opt_level": "O2", "anything": [1]})"), "");
  EXPECT_EQ(
      status_problems(
          R"("autotuning": {"enabled": false, "arg_mappings": {"gradient_accumulation_steps ": "--gas"}})"),
      "");
}

TEST(Status, AnUnsupportedSectionIsReportedOnce) {
  EXPECT_EQ(status_problems(R"("quantize_training": {"quantize_bits": {"start_bits": 12}})"),
            "error: f:2:22: quantize_training: {\"quantize_bits\": {\"start_bits\": 12}} is not supported: "
            "no quantization during training; remove it or set it to null or {}\n");
  EXPECT_EQ(
      status_problems(R"("sparse_attention": {"mode": "fixed"})"),
      "error: f:2:21: sparse_attention: {\"mode\": \"fixed\"} is not supported: attention covers all earlier "
      "positions; remove it or set it to null or {}\n");
}

}  // namespace
}  // namespace cleave::config
