// Unknown keys, and their names in messages.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include "config_schema/read_config.h"
#include "config_schema/summary.h"

namespace cleave::config {
namespace {

ReadResult read_unknown(const std::string& members) {
  return read_ds_config("{\"train_batch_size\": 4,\n" + members + "}", "f", {});
}
std::string unknown_problems(const std::string& members) { return format(read_unknown(members).problems); }

void expect_error(const std::string& members, const std::string& says) {
  const std::string all = unknown_problems(members);
  EXPECT_TRUE(all.starts_with("error: ")) << members << "\n" << all;
  EXPECT_NE(all.find(says), std::string::npos) << members << "\n" << all;
}

TEST(UnknownKeys, CommonWrongNamesAreErrorsWithTheKey) {
  const std::pair<const char*, const char*> top[] = {
      {"micro_batch_size_per_gpu", "did you mean \"train_micro_batch_size_per_gpu\"?"},
      {"micro_batch_size", "did you mean \"train_micro_batch_size_per_gpu\"?"},
      {"global_batch_size", "did you mean \"train_batch_size\"?"},
      {"batch_size",
       "use train_batch_size (samples per step over all ranks) and train_micro_batch_size_per_gpu (samples "
       "per rank and pass)"},
      {"zero_stage", "did you mean zero_optimization.stage?"},
      {"learning_rate", "did you mean optimizer.params.lr?"},
      {"lr", "did you mean optimizer.params.lr?"},
      {"grad_clip", "did you mean \"gradient_clipping\"?"},
      {"max_grad_norm", "did you mean \"gradient_clipping\"?"},
      {"bf16_enabled", "did you mean bf16.enabled?"},
      {"float16", "did you mean \"fp16\"?"},
      {"grad_accum_steps", "did you mean \"gradient_accumulation_steps\"?"},
      {"gradient_checkpointing", "did you mean activation_checkpointing.interval?"},
      {"freeze", "did you mean cleave.freeze?"},
      {"offload", "zero_optimization.offload_optimizer and zero_optimization.offload_param"}};
  for (const auto& [name, says] : top) expect_error(fmt::format("\"{}\": 1", name), says);
  // Typos of these names are also found.
  expect_error(R"("grad_cliping": 1.0)", "did you mean \"gradient_clipping\"?");
  expect_error(R"("max_grad_nrom": 1.0)", "did you mean \"gradient_clipping\"?");
  expect_error(R"("micro_batch_sise": 1)", "did you mean \"train_micro_batch_size_per_gpu\"?");
  expect_error(R"("eigenvalue": {"enabled": true})", "quantization during training, which is not supported");
  EXPECT_EQ(unknown_problems(R"("eigenvalue": {"enabled": false, "tol": 0.01})"), "");
  expect_error(R"("zero_optimization": {"offload": {}})", "offload_optimizer and offload_param");
  expect_error(R"("zero_optimization": {"offload_parameters": {}})", "did you mean \"offload_param\"?");
  expect_error(R"("bf16": {"loss_scale": 0})", "bf16.loss_scale: unknown key; bf16 has the range of fp32");
  expect_error(R"("bf16": {"initial_scale_power": 16})", "remove it");
  expect_error(R"("scheduler": {"type": "WarmupLR", "params": {"warmup_steps": 3}})",
               "did you mean \"warmup_num_steps\"?");
}

TEST(UnknownKeys, OfOtherFrameworksThatChangeTheTrainingAreErrorsUnlessDisabled) {
  const std::pair<const char*, const char*> sizes[] = {
      {"tensor_parallel_size", "did you mean tensor_parallel.autotp_size?"},
      {"tensor_model_parallel_size", "did you mean tensor_parallel.autotp_size?"},
      {"model-parallel-size", "did you mean tensor_parallel.autotp_size?"},
      {"mp_size", "did you mean tensor_parallel.autotp_size?"},
      {"pipeline_model_parallel_size", "did you mean pipeline.stages?"},
      {"pipe-parallel-size", "did you mean pipeline.stages?"},
      {"sp_size", "did you mean \"sequence_parallel_size\"?"},
      {"context_parallel_size", "write {\"sequence_parallel_size\": N}"},
      {"cp_size", "write {\"sequence_parallel_size\": N}"},
      {"dp_size", "the remaining ranks are data parallel; remove it"},
      {"fsdp", "write {\"zero_optimization\": {\"stage\": 3}}"},
      {"fsdp2", "write {\"zero_optimization\": {\"stage\": 3}}"},
      {"pipeline_stages", "did you mean pipeline.stages?"},
      {"parallel", "the keys are tensor_parallel.autotp_size, pipeline.stages"}};
  for (const auto& [name, says] : sizes) {
    expect_error(fmt::format("\"{}\": 2", name), says);
    for (const char* nothing : {"0", "1", "null", "false"})
      EXPECT_EQ(unknown_problems(fmt::format("\"{}\": {}", name, nothing)),
                fmt::format("warning: f:2:1: {}: unknown key; it has no effect\n", name));
  }
  expect_error(R"("zero": 3)", "did you mean zero_optimization.stage?");
  expect_error(R"("zero": {"stage": 3})", "did you mean \"zero_optimization\"?");
  expect_error(R"("offload_optimizer_device": "cpu")",
               "did you mean zero_optimization.offload_optimizer.device?");
  expect_error(R"("lr_scheduler_type": "linear")", "\"total_num_steps\": \"auto\"}}} for linear");
  expect_error(R"("warmup_steps": 100)", "did you mean scheduler.params.warmup_num_steps?");
  expect_error(R"("warmup_ratio": 0.1)", "is a number of steps; set it, or pass --warmup_ratio");
  expect_error(R"("optim": "adamw_torch")", "write {\"optimizer\": {\"type\": \"AdamW\"}}");
  expect_error(R"("dtype": "bf16")", "write {\"bf16\": {\"enabled\": true}}");
  expect_error(R"("sharding_strategy": "SHARD_GRAD_OP")", "SHARD_GRAD_OP stage 2");
  expect_error(R"("use_distributed_optimizer": true)", "{\"stage\": 1}");
  expect_error(R"("sequence_parallel": true)", "automatic with tensor_parallel.autotp_size");
  expect_error(R"("zero3_save_16bit_model": true)", "stage3_gather_16bit_weights_on_model_save");
  expect_error(R"("params_dtype": "bfloat16")", "write {\"bf16\": {\"enabled\": true}}");
  expect_error(R"("half": true)", "did you mean fp16.enabled?");
  expect_error(R"("recompute": true)", "did you mean activation_checkpointing.interval?");
  expect_error(R"("recompute_granularity": "full")", "did you mean activation_checkpointing.interval?");
  expect_error(R"("lr_warmup_iters": 10)", "did you mean scheduler.params.warmup_num_steps?");
  expect_error(R"("clip_norm": 1.0)", "did you mean \"gradient_clipping\"?");
  expect_error(R"("global_train_batch_size": 8)", "did you mean \"train_batch_size\"?");
  expect_error(R"("parallel": {"tp": 2})", "the keys are tensor_parallel.autotp_size");
  expect_error(R"("distributed_type": "MEGATRON_LM")", "tensor_parallel.autotp_size and pipeline.stages");
  EXPECT_EQ(unknown_problems(R"("num_processes": 8)"),
            "warning: f:2:1: num_processes: the launcher sets the number of ranks: cleave launch -n N\n");
  for (const char* nothing :
       {R"("half": false)", R"("recompute": null)", R"("offload_optimizer_device": "none")", R"("zero": 0)",
        R"("distributed_type": "DEEPSPEED")", R"("distributed_type": "NO")", R"("warmup_steps": 0)",
        R"("fsdp": "")", R"("fsdp": [])", R"("dtype": "float32")"})
    EXPECT_TRUE(unknown_problems(nothing).starts_with("warning: ")) << nothing;
}

TEST(UnknownKeys, AConfigurationInsideAnotherObjectIsAnErrorThatSaysToMoveIt) {
  const auto moved = [](const std::string& keys, const std::string& path) {
    return fmt::format(
        "{} in {}; move its contents to the top level, or prefix the name with _ if another program reads it",
        keys, path);
  };
  const char* inner = R"({"zero_optimization": {"stage": 3}, "bf16": {"enabled": true}, "x": 1})";
  for (const char* name : {"deepspeed", "deepspeed_config", "ds_config", "training", "my_own_thing"})
    expect_error(fmt::format("\"{}\": {}", name, inner),
                 moved("zero_optimization, bf16", fmt::format("\"{}\"", name)));
  expect_error(fmt::format("\"a\": {{\"b\": {{\"c\": {}}}}}", inner),
               moved("zero_optimization, bf16", R"("a"."b"."c")"));
  expect_error(R"("deepspeed": {"wandb": {}})", moved("wandb", R"("deepspeed")"));
  expect_error(R"("deepspeed_plugin": {"zero_stage": 3})", moved("zero_stage", R"("deepspeed_plugin")"));
  expect_error(R"("trainer": [{"precision_": 1}, {"gradient_clipping": 0.5}])",
               moved("gradient_clipping", R"("trainer"[1])"));
  expect_error(R"("train": {"gradient_accumulation_steps": 4})",
               moved("gradient_accumulation_steps", R"("train")"));
  expect_error(R"("deepspeed_config": "other.json")",
               "unknown key with the file \"other.json\"; pass that file as --deepspeed_config");
  for (const char* foreign :
       {R"("logging": {"log_level": "info", "wandb": {"enabled": true}})", R"("deepspeed": true)",
        R"("deepspeed": {"path": "x"})", R"("model": {"vocabulary_size": 5, "optimizer": {"x": 1}})"})
    EXPECT_TRUE(unknown_problems(foreign).starts_with("warning: ")) << unknown_problems(foreign);
  EXPECT_EQ(unknown_problems(fmt::format("\"_deepspeed\": {}", inner)), "");
}

TEST(UnknownTypes, OfOtherLibrariesGetTheNameHere) {
  const std::pair<const char*, const char*> types[] = {
      {R"("scheduler": {"type": "linear"})", "did you mean \"WarmupDecayLR\"?"},
      {R"("scheduler": {"type": "cosine"})", "did you mean \"WarmupCosineLR\"?"},
      {R"("scheduler": {"type": "CosineAnnealingLR"})", "the nearest supported one is \"WarmupCosineLR\""},
      {R"("scheduler": {"type": "constant"})", "remove the section"},
      {R"("optimizer": {"type": "adamw_torch"})", "did you mean \"AdamW\"?"},
      {R"("optimizer": {"type": "FusedAdam"})", "did you mean \"AdamW\"?"},
      {R"("optimizer": {"type": "DeepSpeedCPUAdam"})", "did you mean \"AdamW\"?"},
      {R"("fp16": {"fp16": true})", "did you mean \"enabled\"?"},
      {R"("bf16": {"bf16": true})", "did you mean \"enabled\"?"},
      {R"("fp16": {"type": "bfloat16"})", "write {\"bf16\": {\"enabled\": true}}"},
      {R"("fp16": {"enabled": true, "opt_level": "O2"})", "an Apex argument"},
      {R"("pipeline": {"pipeline_parallel_size": 1})", "did you mean \"stages\"?"}};
  for (const auto& [members, says] : types) expect_error(members, says);
}

TEST(UnknownKeys, AWordOfManySectionsSuggestsNoOtherSection) {
  const std::string said = unknown_problems(R"("compile": {"enabled": true})");
  EXPECT_EQ(said.find("did you mean"), std::string::npos) << said;
}

TEST(UnknownKeys, DottedPathsShowTheSections) {
  expect_error("\"zero_optimization.stage\": 3",
               "a dot in a name opens no section; write {\"zero_optimization\": {\"stage\": ...}}");
  expect_error(R"("zero_optimization": {"offload_optimizer.device": "cpu"})", "write {\"zero_optimization\"");
}

TEST(UnknownKeys, OldNamesThatDeepSpeedIgnoresAreWarnings) {
  for (const char* name : {"thread_count", "num_threads"})
    EXPECT_EQ(unknown_problems(fmt::format("\"aio\": {{\"{}\": 1}}", name)),
              fmt::format("warning: f:2:9: aio.{}: an old name of intra_op_parallelism that neither "
                          "DeepSpeed nor Cleave reads\n",
                          name));
  EXPECT_TRUE(unknown_problems("\"num_train_epochs\": 3").starts_with("warning: "));
}

TEST(UnknownKeys, ASectionOfAnotherProgramThatResemblesAKeyIsAWarning) {
  for (const char* members :
       {R"("checkpointing": {"save_interval": 10})", R"("communication": {"backend": "x"})",
        R"("dataset": {"path": "x"})", R"("checkpointing": {})"})
    EXPECT_EQ(unknown_problems(members),
              fmt::format("warning: f:2:1: {}: unknown key; it has no effect\n",
                          std::string_view(members).substr(1, std::string_view(members).find('"', 1) - 1)));
  expect_error(R"("zero_optimizaton": {"stage": 2})", "did you mean \"zero_optimization\"?");
  expect_error(R"("zero_optimizaton": {"staeg": 2})", "did you mean \"zero_optimization\"?");
  expect_error(R"("checkpointing": {"async": true})", "did you mean \"checkpoint\"?");
  expect_error(R"("activation_checkpoint": {"partition_activations": true})",
               "did you mean \"activation_checkpointing\"?");
}

TEST(UnknownKeys, ThatEnableAnotherTrainingAreErrorsAndDisabledOnesAreForeign) {
  for (const char* members : {R"("load_in_4bit": true)", R"("quantization_config": {"bits": 4})",
                              R"("moe": {"num_experts": 8})", R"("dpo": {"beta": 0.1})"})
    expect_error(members, "is not supported; remove it to train without this feature");
  expect_error(R"("fp8": {"enabled": true})", "cleave.fp8");
  for (const char* members : {R"("peft": {"r": 8})", R"("lora_config": {"r": 8})", R"("lora_r": 8)"})
    expect_error(members, "adapters are asked for by {\"cleave\": {\"lora\"");
  for (const char* members : {R"("peft": null)", R"("peft": {})", R"("adapters": false)",
                              R"("moe": {"enabled": false, "experts": 8})", R"("load_in_8bit": false)",
                              R"("lora_r": 0)", R"("quantization": "none")", R"("dataset": {"path": "x"})",
                              R"("logging": {"level": "info"})", R"("explore": 3)"})
    EXPECT_TRUE(unknown_problems(members).starts_with("warning: ")) << members << "\n"
                                                                    << unknown_problems(members);
  EXPECT_FALSE(
      read_ds_config(R"({"train_batch_size": 4, "dataset": {"path": "x"}})", "f", {.strict = true}).ok());
}

TEST(UnknownKeys, InADisabledUnsupportedSectionAreWarnings) {
  EXPECT_EQ(unknown_problems(R"("comet": {"enabled": false, "entity": "x", "samples_log_interval": null})"),
            "warning: f:2:29: comet.entity: unknown key in comet\n"
            "warning: f:2:68: comet.samples_log_interval: expected an integer, got null\n");
  EXPECT_TRUE(read_unknown(R"("comet": {"entity": "x"})").ok());
  EXPECT_FALSE(read_unknown(R"("comet": {"enabled": true, "entity": "x"})").ok());
  EXPECT_FALSE(read_unknown(R"("tensorboard": {"enabled": false, "entity": "x"})").ok());
  EXPECT_FALSE(read_unknown(R"("comet": {"enabled": false}, "fp16": {"entity": "x"})").ok());
}

TEST(UnknownKeys, NamesAreEscapedAndCutBeforeTheyArePrinted) {
  const std::string forged = "x\\nerror: f:9:9: forged";
  const std::string escapes = "\\u001b[31mred \\u009b2J";
  for (const std::string& name : {forged, escapes, std::string(1'000'000, 'y'), std::string("\\u202e\\\"")}) {
    for (const char* form : {"\"{}\": 1", "\"fp16\": {{\"{}\": 1}}", "\"_{}\": 1",
                             "\"zero_optimization\": {{\"_\": 1, \"{}\": {{}}}}"}) {
      const ReadResult r = read_unknown(fmt::format(fmt::runtime(form), name));
      const std::string all = format(r.problems) + format(r.notes);
      EXPECT_LT(format(r.problems).size(), 400u) << name.substr(0, 20);
      EXPECT_EQ(all.find('\x1b'), std::string::npos);
      EXPECT_EQ(all.find("\xc2\x9b"), std::string::npos);
      EXPECT_EQ(all.find("\nerror: f:9:9"), std::string::npos) << all;
    }
  }
  EXPECT_EQ(unknown_problems("\"" + forged + "\": 1"),
            "warning: f:2:1: \"x\\x0aerror: f:9:9: forged\": unknown key; it has no effect\n");
}

TEST(UnknownKeys, NoValueReachesAMessageOrANoteRaw) {
  const ReadResult r = read_unknown(
      R"("pipeline": {"stages": 1, "schedule": "a\u001b[31m\n\"", "partition_method": "b\u001b\n"},
      "tensorboard": {"output_path": "c\n\"d\u001b"})");
  const std::string all = format(r.problems) + format(r.notes);
  EXPECT_EQ(all.find('\x1b'), std::string::npos);
  EXPECT_NE(all.find(R"(tensorboard.output_path = "c\x0a)"), std::string::npos) << all;
}

TEST(DeepSpeedsValues, AreReadAsItReadsThem) {
  EXPECT_TRUE(read_unknown(R"("zero_optimization": {"stage": 3, "load_from_fp32_weights": false})").ok());
  for (const char* yes : {"true", "1", "\"torch_impl\"", "[0]"})
    EXPECT_EQ(
        read_unknown(fmt::format(R"("optimizer": {{"type": "AdamW", "params": {{"torch_adam": {}}}}})", yes))
            .config.optimizer.weight_decay,
        0.01)
        << yes;
  for (const char* no : {"false", "0", "\"\"", "null", "{}"})
    EXPECT_EQ(
        read_unknown(fmt::format(R"("optimizer": {{"type": "AdamW", "params": {{"torch_adam": {}}}}})", no))
            .config.optimizer.weight_decay,
        0)
        << no;
  expect_error(R"("fp16": {"enabled": true, "min_loss_scale": 1e300})",
               " is above the initial loss scale 2^16 = 65536");
  EXPECT_TRUE(read_unknown(R"("fp16": {"enabled": true, "min_loss_scale": 65536})").ok());
  EXPECT_TRUE(read_unknown(R"("fp16": {"enabled": false, "min_loss_scale": 1e300})").ok());
}

TEST(DeepSpeedsValues, ASectionsOldNameIsInTheStartLines) {
  EXPECT_EQ(differences(read_unknown(R"("bfloat16": {"enabled": true})")), "bfloat16.enabled = true");
}

TEST(DeepSpeedsValues, AutotuningHasNoEffectAndReportsIt) {
  const ReadResult r = read_unknown(R"("autotuning": {"enabled": true, "fast": false})");
  EXPECT_TRUE(r.ok()) << format(r.problems);
  EXPECT_EQ(format(r.problems),
            "warning: f:2:16: autotuning.enabled: has no effect: DeepSpeed searches configurations only if "
            "its launcher gets --autotuning; the training uses the values of this file\n");
  EXPECT_EQ(unknown_problems(R"("autotuning": {"enabled": false})"), "");
}

TEST(Messages, StateAProblemOnceWithItsValue) {
  const std::string scheduler =
      unknown_problems(R"("scheduler": {"type": "Cosine", "params": {"warmup_num_steps": 5, "x": 1}})");
  EXPECT_EQ(std::count(scheduler.begin(), scheduler.end(), '\n'), 1) << scheduler;
  expect_error(R"("scheduler": {"params": {"warmup_num_steps": 5}})", "has no scheduler.type");
  const auto betas = [](const char* value) {
    return unknown_problems(
        fmt::format(R"("optimizer": {{"type": "Adam", "params": {{"betas": {}}}}})", value));
  };
  EXPECT_NE(betas("[0.9, 1.5]").find("each from 0 to 1, got [0.9, 1.5]; the second, 1.5, is not"),
            std::string::npos)
      << betas("[0.9, 1.5]");
  EXPECT_NE(betas("[\"a\", 0.9]").find("the first, \"a\" (a string), is not"), std::string::npos);
  EXPECT_NE(
      betas("[1, 0.9]").find("the first is 1; both must be below 1, otherwise the moments never change"),
      std::string::npos);
  EXPECT_NE(unknown_problems("\"gradient_clipping\": 1 \"fp16\": {}").find("missing comma before this key"),
            std::string::npos);
  EXPECT_NE(unknown_problems(R"("aio": {}, "x": [1 2])").find("missing comma before this value"),
            std::string::npos)
      << unknown_problems(R"("aio": {}, "x": [1 2])");
}

}  // namespace
}  // namespace cleave::config
