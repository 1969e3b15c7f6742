#include "config_schema/read_config.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <fstream>

#include "core/error.h"
#include "tests/scratch.h"

namespace cleave::config {
namespace {

const char* kMainJob = R"({"train_batch_size": 64, "gradient_accumulation_steps": 1,
  "optimizer": {"type": "AdamW", "params": {"lr": 0.001, "betas": [0.9, 0.999], "eps": 1e-8}},
  "fp16": {"enabled": true, "loss_scale": 0, "initial_scale_power": 16},
  "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": true},
    "allgather_partitions": true, "allgather_bucket_size": 2e8, "reduce_scatter": true, "reduce_bucket_size": 2e8,
    "overlap_comm": true, "contiguous_gradients": true}})";

ReadResult read(const std::string& text, int64_t ranks = 1) {
  ReadOptions options;
  options.world_size = ranks;
  return read_ds_config(text, "f", options);
}

// Reads `members`, on a separate line, with a valid batch size.
ReadResult read_beside_batch(const std::string& members) {
  return read("{\"train_batch_size\": 4,\n" + members + "}");
}
std::string problems_of(const std::string& members) { return format(read_beside_batch(members).problems); }

TEST(ReadConfig, ReadsZero2WithCpuOffload) {
  const ReadResult r = read(kMainJob, 2);
  ASSERT_TRUE(r.problems.empty()) << format(r.problems);
  const DsConfig& c = r.config;
  EXPECT_EQ(c.train_micro_batch_size_per_gpu, 32);
  EXPECT_EQ(c.optimizer.type, OptimizerType::adamw);
  EXPECT_EQ(c.optimizer.lr, 1e-3);
  EXPECT_TRUE(c.optimizer.decoupled);
  EXPECT_EQ(c.precision, Precision::fp16);
  EXPECT_EQ(c.fp16.loss_scale, 0);
  EXPECT_EQ(c.zero.stage, 2);
  EXPECT_EQ(c.zero.offload_optimizer.device, OffloadDevice::cpu);
  EXPECT_EQ(c.zero.allgather_bucket_size, 200'000'000);
  EXPECT_EQ(c.zero.reduce_bucket_size, 200'000'000);
  EXPECT_TRUE(c.zero.overlap_comm);
  EXPECT_EQ(c.gradient_clipping, 1.0);
}

TEST(ReadConfig, HasANoteForEveryKeyOfTheFile) {
  const ReadResult r = read(kMainJob, 2);
  size_t from_file = 0;
  bool derived = false;
  for (const Note& n : r.notes) {
    from_file += n.origin == "user";
    derived |= n.path == "train_micro_batch_size_per_gpu" && n.origin == "derived" && n.value == "32";
    EXPECT_FALSE(n.meaning.empty()) << n.path;
  }
  EXPECT_EQ(from_file, 18u);
  EXPECT_TRUE(derived);
  EXPECT_NE(format(r.notes).find("contiguous_gradients = true (user, f:6:27): no effect here"),
            std::string::npos)
      << format(r.notes);
}

TEST(ReadConfig, AValueThatFollowsFromAnotherKeyIsNotCalledADefault) {
  const ReadResult r = read_beside_batch(
      R"("pipeline": {"stages": 1, "activation_checkpoint_interval": 2}, "zero_optimization": {"stage": 3})");
  std::string origins;
  for (const Note& n : r.notes)
    if (n.path == "activation_checkpointing.interval" || n.path == "zero_optimization.overlap_comm" ||
        n.path == "gradient_clipping" || n.path == "zero_optimization.stage")
      origins += fmt::format("{} = {} ({}) ", n.path, n.value, n.origin);
  EXPECT_EQ(origins,
            "zero_optimization.stage = 3 (user) zero_optimization.overlap_comm = true (derived) "
            "activation_checkpointing.interval = 2 (derived) "
            "gradient_clipping = 1 (default) ");
}

TEST(ReadConfig, DoesNotTakePlaceholdersAndTextsOfOtherLanguagesForValues) {
  EXPECT_EQ(problems_of(R"("tensorboard": {"output_path": "{{ out }}/x"})"),
            "error: f:2:32: tensorboard.output_path: \"{{ out }}\" is not substituted in this file; write "
            "the value, a "
            "string\n");
  EXPECT_EQ(
      problems_of(R"("fp16": {"enabled": "$FP16"})"),
      "error: f:2:21: fp16.enabled: \"$FP16\" is not substituted in this file; write the value, true or "
      "false\n");
  EXPECT_EQ(problems_of(
                R"("cleave": {"freeze": ["^a{2}$"]}, "_x": "${X}", "tensorboard": {"job_name": "a$b True"})"),
            "");
  EXPECT_EQ(
      format(read("{\"a\": \"True\", # None\n 'train_batch_size': 8 // False\n}").problems).find("error"),
      std::string::npos);
  EXPECT_EQ(format(read("---\ntrain_batch_size: 8\n").problems),
            "error: f:1:1: YAML instead of JSON; a configuration is a JSON object: { \"train_batch_size\": "
            "8, ... "
            "}\n");
}

TEST(ReadConfig, DefaultsAreDeepSpeeds) {
  const DsConfig c = read("{\"train_micro_batch_size_per_gpu\": 1}").config;
  EXPECT_EQ(c.gradient_clipping, 1.0);
  EXPECT_EQ(c.fp16.initial_scale_power, 16);
  EXPECT_EQ(c.fp16.hysteresis, 2);
  EXPECT_EQ(c.fp16.loss_scale_window, 1000);
  EXPECT_EQ(c.zero.reduce_bucket_size, 500'000'000);
  EXPECT_TRUE(c.zero.offload_optimizer.pin_memory);
  EXPECT_FALSE(c.zero.overlap_comm);
  EXPECT_TRUE(read_beside_batch(R"("zero_optimization": {"stage": 3})").config.zero.overlap_comm);
}

TEST(ReadConfig, ReportsAllErrorsAtOnceInTheOrderOfTheFile) {
  EXPECT_EQ(
      format(
          read(
              "{\n  \"train_batch_size\": \"8\",\n  \"fp16\": {\"enabled\": 7, \"loss_scal\": 0},\n"
              "  \"zero_optimization\": {\"stage\": 4,\n    \"offload_optimizer\": {\"device\": \"gpu\"}}\n}")
              .problems),
      "error: f:2:23: train_batch_size: expected an integer from 1 to 1000000000000, or null, got \"8\" (a "
      "string)\n"
      "error: f:3:23: fp16.enabled: expected true or false, got 7\n"
      "error: f:3:26: fp16.loss_scal: unknown key; did you mean \"loss_scale\"?\n"
      "error: f:4:34: zero_optimization.stage: expected an integer from 0 to 3, got 4\n"
      "error: f:5:37: zero_optimization.offload_optimizer.device: expected one of \"none\", \"cpu\", "
      "\"nvme\", "
      "got "
      "\"gpu\" (a string); did you mean \"cpu\"?\n");
}

TEST(ReadConfig, NamesAtMostThreeKeysWithErrors) {
  const auto named = [](const char* text) { return name_errors(read(text).problems); };
  EXPECT_EQ(named(R"({"train_batch_size": 8, "fp16": {"loss_scal": 0}, "my_section": {}})"),
            "1 error (fp16.loss_scal)");
  EXPECT_EQ(named(R"({"train_batch_size": 8, "fp16": {"a": 0, "b": 0, "c": 0, "d": 0}})"),
            "4 errors (fp16.a, fp16.b, fp16.c, ...)");
  EXPECT_EQ(named("{"), "1 error (f:1:1)");
}

TEST(ReadConfig, UnknownKeysAreErrorsWithTheNearestKeyOrPlace) {
  EXPECT_EQ(problems_of("\"gradient_cliping\": 1"),
            "error: f:2:1: gradient_cliping: unknown key; did you mean \"gradient_clipping\"?\n");
  EXPECT_EQ(problems_of("\"stage\": 2"),
            "error: f:2:1: stage: unknown key; did you mean zero_optimization.stage?\n");
  EXPECT_EQ(problems_of("\"zero_optimization\": {\"zzzzzz\": 1}"),
            "error: f:2:23: zero_optimization.zzzzzz: unknown key in zero_optimization\n");
  EXPECT_EQ(problems_of("\"my_own_setting\": 1"),
            "warning: f:2:1: my_own_setting: unknown key; it has no effect\n");
  EXPECT_EQ(problems_of("\"gradient_clipping \": 1"),
            "error: f:2:1: \"gradient_clipping \": unknown key; did you mean \"gradient_clipping\"?\n");
}

TEST(ReadConfig, AnUnfinishedNameIsUnderstoodAndAShortOneIsNotMatchedElsewhere) {
  EXPECT_EQ(problems_of("\"train_micro_batch_size\": 4"),
            "error: f:2:1: train_micro_batch_size: unknown key; did you mean "
            "\"train_micro_batch_size_per_gpu\"?\n");
  EXPECT_EQ(problems_of("\"moe\": {}"), "warning: f:2:1: moe: unknown key; it has no effect\n");
  EXPECT_EQ(problems_of("\"aio\": {\"thread_count\": 1}"),
            "warning: f:2:9: aio.thread_count: an old name of intra_op_parallelism that neither DeepSpeed "
            "nor Cleave reads\n");
  EXPECT_EQ(problems_of("\"zero_allow_untrained\": true"),
            "error: f:2:1: zero_allow_untrained: unknown key; did you mean "
            "\"zero_allow_untested_optimizer\"?\n");
}

TEST(ReadConfig, CommentsAreNotesAtEveryLevelAndNeverProblems) {
  ReadOptions strict;
  strict.strict = true;
  const ReadResult r = read_ds_config(R"({"train_batch_size": 4, "_note": 1, "//": {"x": 2}, "comment": "c",
 "name": "n", "project": "p", "description": [1], "notes": "x",
 "fp16": {"_why": "y"}, "zero_optimization": {"offload_optimizer": {"// z": 3}}})",
                                      "f", strict);
  EXPECT_EQ(format(r.problems), "");
  std::string noted;
  for (const Note& n : r.notes)
    if (n.status == "comment") noted += n.path + " ";
  EXPECT_EQ(noted,
            "_note // comment name project description notes fp16._why "
            "zero_optimization.offload_optimizer.// z ");
  EXPECT_EQ(problems_of("\"fp16\": {\"comment\": 1}"), "error: f:2:10: fp16.comment: unknown key in fp16\n");
}

TEST(ReadConfig, TheOldBooleanZeroHasItsNote) {
  for (const auto& [value, stage] : {std::pair{"false", "0"}, {"true", "1"}}) {
    const ReadResult r = read_beside_batch(fmt::format("\"zero_optimization\": {}", value));
    EXPECT_NE(
        format(r.notes).find(fmt::format("zero_optimization = {} (user, f:2:1): honoured: the old form of "
                                         "zero_optimization.stage: {}",
                                         value, stage)),
        std::string::npos)
        << format(r.notes);
  }
}

TEST(ReadConfig, AKeyGivenTwiceIsOneError) {
  EXPECT_EQ(problems_of("\"steps_per_print\": 1, \"steps_per_print\": 2"),
            "error: f:2:23: duplicate key \"steps_per_print\" in one object; remove one\n");
}

TEST(ReadConfig, StrictTurnsWarningsIntoErrors) {
  ReadOptions options;
  options.strict = true;
  const char* text =
      R"({"train_batch_size": 4, "my_own_setting": 1, "activation_checkpointing": {"profile": true},
                         "zero_optimization": {"stage": 1, "stage3_max_live_parameters": 5}})";
  EXPECT_TRUE(read_ds_config(text, "f", {}).ok());
  EXPECT_EQ(read_ds_config(text, "f", {}).problems.size(), 3u);
  EXPECT_FALSE(read_ds_config(text, "f", options).ok());
  for (const Problem& p : read_ds_config(text, "f", options).problems) EXPECT_FALSE(p.warning);
}

TEST(ReadConfig, OldSpellingsMeanTheSame) {
  EXPECT_EQ(read_beside_batch(R"("bfloat16": {"enabled": true})").config.precision, Precision::bf16);
  EXPECT_EQ(read_beside_batch(R"("zero_optimization": true)").config.zero.stage, 1);
  EXPECT_EQ(read_beside_batch(R"("zero_optimization": false)").config.zero.stage, 0);
  EXPECT_EQ(read_beside_batch(R"("zero_optimization": {"stage": 3, "cpu_offload_param": true})")
                .config.zero.offload_param.device,
            OffloadDevice::cpu);
  EXPECT_EQ(read_beside_batch(R"("zero_optimization": {"stage": 2, "cpu_offload": true})")
                .config.zero.offload_optimizer.device,
            OffloadDevice::cpu);
  EXPECT_EQ(read_beside_batch(R"("zero_optimization": {"stage": 3, "max_live_parameters": 7})")
                .config.zero.stage3_max_live_parameters,
            7);
  EXPECT_EQ(
      problems_of(R"("zero_optimization": {"cpu_offload": true, "offload_optimizer": {"device": "none"}})"),
      "error: f:2:23: zero_optimization.cpu_offload: is the old spelling of offload_optimizer.device, which "
      "is also set; remove cpu_offload\n");
  EXPECT_EQ(problems_of(R"("bf16": {"enabled": true}, "bfloat16": {})"),
            "error: f:2:28: bfloat16: bf16 and bfloat16 are the same key, section; keep one (the other is at "
            "f:2:1)\n");
}

TEST(ReadConfig, TheOldBooleanZeroTakesTheOldBucketSize) {
  const ReadResult r = read_beside_batch(R"("zero_optimization": true, "allgather_size": 1000)");
  ASSERT_TRUE(r.problems.empty()) << format(r.problems);
  EXPECT_EQ(r.config.zero.allgather_bucket_size, 1000);
}

TEST(ReadConfig, OptimizerTypesAreCaseBlindAndSchedulesAreNot) {
  EXPECT_EQ(read_beside_batch(R"("optimizer": {"type": "adamw"})").config.optimizer.type,
            OptimizerType::adamw);
  EXPECT_EQ(problems_of(R"("scheduler": {"type": "warmuplr"})"),
            "error: f:2:23: scheduler.type: unknown schedule \"warmuplr\"; expected one of WarmupLR, "
            "WarmupDecayLR, "
            "WarmupCosineLR, OneCycle, LRRangeTest; did you mean \"WarmupLR\"?\n");
  EXPECT_EQ(
      problems_of(R"("optimizer": {"type": "Muon", "params": {"lr": 1, "betas": [0, 0], "nonsense": 1}})"),
      "error: f:2:23: optimizer.type: \"Muon\" is an unsupported optimizer; expected one of Adam, "
      "AdamW, Lamb, Lion, Adagrad, SGD\n");
}

TEST(ReadConfig, GivesAdagradItsOwnDefaults) {
  const auto adagrad = [](const char* params) {
    const ReadResult r =
        read_beside_batch(fmt::format(R"("optimizer": {{"type": "adagrad", "params": {{{}}}}})", params));
    EXPECT_TRUE(r.ok()) << format(r.problems);
    return r.config.optimizer;
  };
  EXPECT_EQ(adagrad("").type, OptimizerType::adagrad);
  EXPECT_EQ(adagrad("").lr, 1e-2);
  EXPECT_EQ(adagrad("").eps, 1e-10);
  EXPECT_EQ(adagrad(R"("lr": 0.5, "eps": 1e-3)").lr, 0.5);
  EXPECT_EQ(adagrad(R"("lr": 0.5, "eps": 1e-3)").eps, 1e-3);
  EXPECT_NE(problems_of(R"("optimizer": {"type": "Adagrad", "params": {"betas": [0.9, 0.99]}})")
                .find("betas: is not a parameter of Adagrad"),
            std::string::npos);
}

TEST(ReadConfig, PlainAdamHasDecoupledDecayUnlessDisabled) {
  const auto decoupled = [](const char* optimizer) {
    const ReadResult r = read_beside_batch(std::string("\"optimizer\": ") + optimizer);
    EXPECT_TRUE(r.ok()) << format(r.problems);
    return r.config.optimizer.decoupled;
  };
  EXPECT_TRUE(decoupled(R"({"type": "Adam"})"));
  EXPECT_FALSE(decoupled(R"({"type": "Adam", "params": {"adam_w_mode": false}})"));
  EXPECT_TRUE(decoupled(R"({"type": "AdamW", "params": {"adam_w_mode": false}})"));
  EXPECT_EQ(problems_of(R"("optimizer": {"type": "AdamW", "params": {"adam_w_mode": false}})"),
            "warning: f:2:43: optimizer.params.adam_w_mode: has no effect: optimizer.type is AdamW, which "
            "always decouples weight decay\n");
}

TEST(ReadConfig, TorchAdamTakesPyTorchsWeightDecay) {
  EXPECT_EQ(read_beside_batch(R"("optimizer": {"type": "AdamW", "params": {"torch_adam": true}})")
                .config.optimizer.weight_decay,
            0.01);
  EXPECT_EQ(read_beside_batch(R"("optimizer": {"type": "AdamW"})").config.optimizer.weight_decay, 0);
  EXPECT_EQ(read_beside_batch(
                R"("optimizer": {"type": "Adam", "params": {"torch_adam": true, "adam_w_mode": false}})")
                .config.optimizer.weight_decay,
            0);
}

TEST(ReadConfig, ArgumentsOfAnotherTypeAreNamed) {
  EXPECT_EQ(problems_of(R"("optimizer": {"params": {"momentum": 0.9}, "type": "AdamW"})"),
            "error: f:2:26: optimizer.params.momentum: is not a parameter of AdamW; SGD has it\n");
  EXPECT_EQ(problems_of(R"("optimizer": {"type": "SGD", "params": {"freeze_step": 9}})"),
            "error: f:2:41: optimizer.params.freeze_step: is not a parameter of SGD: it belongs to an "
            "unsupported optimizer\n");
  EXPECT_EQ(problems_of(R"("optimizer": {"type": "Adam", "params": {"max_grad_norm": 1}})"),
            "error: f:2:42: optimizer.params.max_grad_norm: clipping is not an optimizer parameter; use the "
            "top-level key "
            "gradient_clipping\n");
  EXPECT_EQ(problems_of(R"("optimizer": {"params": {"lr": 1}})"),
            "error: f:2:15: optimizer.params: has no optimizer.type; set Adam, AdamW, Lamb, Lion, Adagrad or "
            "SGD\n");
}

TEST(ReadConfig, SchedulesCheckTheirRequiredKeys) {
  EXPECT_EQ(problems_of(R"("scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 0.1}})"),
            "error: f:2:15: scheduler.type: OneCycle needs scheduler.params.cycle_max_lr\n");
  EXPECT_EQ(problems_of(R"("scheduler": {"type": "WarmupDecayLR", "params": {"warmup_num_steps": 3.5}})"),
            "error: f:2:15: scheduler.type: WarmupDecayLR needs scheduler.params.total_num_steps; set it to "
            "a number, or to \"auto\" for --steps\n"
            "error: f:2:71: scheduler.params.warmup_num_steps: expected an integer of at least 0, got 3.5\n");
  EXPECT_EQ(
      problems_of(
          R"("scheduler": {"type": "WarmupDecayLR", "params": {"warmup_num_steps": 9, "total_num_steps": 5}})"),
      "warning: f:2:74: scheduler.params.total_num_steps: 5 is less than scheduler.params.warmup_num_steps "
      "9: the "
      "warm-up never ends\n");
  // A schedule shorter than the training is valid, but rarely intended.
  const std::string short_one =
      R"({"train_batch_size": 8, "scheduler": {"type": "WarmupCosineLR", "params": {"warmup_num_steps": 2,
      "warmup_max_lr": 0.1, "total_num_steps": 5}}})";
  for (const auto& [steps, warned] :
       {std::pair<std::optional<int64_t>, bool>{6, true}, {5, false}, {std::nullopt, false}}) {
    ReadOptions options;
    options.auto_values.total_steps = steps;
    const std::string said = format(read_ds_config(short_one, "f", options).problems);
    EXPECT_EQ(said.find("the schedule ends at step 5, and the training has 6 steps") != std::string::npos,
              warned)
        << said;
  }
  const auto max_lr = [](const char* scheduler) {
    return read_beside_batch(std::string("\"scheduler\": ") + scheduler).config.scheduler.warmup_max_lr;
  };
  EXPECT_EQ(max_lr(R"({"type": "WarmupDecayLR", "params": {"total_num_steps": 9, "warmup_num_steps": 3}})"),
            0.001);
  EXPECT_EQ(max_lr(R"({"type": "WarmupLR"})"), std::nullopt);
  EXPECT_EQ(max_lr(R"({"type": "WarmupLR", "params": {"warmup_max_lr": [0.25]}})"), 0.25);
}

TEST(ReadConfig, UnsupportedCombinationsAreErrors) {
  EXPECT_NE(problems_of(R"("fp16": {"enabled": true}, "bf16": {"enabled": true})").find("are both true"),
            std::string::npos);
  EXPECT_NE(problems_of(R"("zero_optimization": {"stage": 3}, "gradient_allreduce_op": "SUM")")
                .find("cannot be combined with"),
            std::string::npos);
  EXPECT_NE(problems_of(R"("zero_optimization": {"stage": 2}, "prescale_gradients": true)")
                .find("cannot be combined with"),
            std::string::npos);
  EXPECT_EQ(problems_of(
                R"("zero_optimization": {"stage": 2, "reduce_scatter": false}, "prescale_gradients": true)"),
            "");
  EXPECT_NE(problems_of(R"("optimizer": {"type": "SGD", "params": {"nesterov": true}})").find("needs"),
            std::string::npos);
  EXPECT_NE(problems_of(R"("data_types": {"param_dtype": "bf16"})").find("make them equal"),
            std::string::npos);
  EXPECT_EQ(problems_of(R"("data_types": {"param_dtype": "bf16"}, "bf16": {"enabled": true})"), "");
  EXPECT_NE(problems_of(R"("data_parallel_size": 4)").find("the data-parallel size is 1"), std::string::npos);
}

TEST(ReadConfig, InfinityForStepsPerPrintMeansNever) {
  EXPECT_EQ(read_beside_batch("\"steps_per_print\": Infinity").config.steps_per_print, 0);
  EXPECT_EQ(read_beside_batch("\"steps_per_print\": 10").config.steps_per_print, 10);
  EXPECT_FALSE(read_beside_batch("\"steps_per_print\": -Infinity").ok());
}

TEST(ReadConfig, OnlyAnObjectIsAConfiguration) {
  EXPECT_EQ(format(read("[1, 2]").problems), "error: f:1:1: expected a JSON object, got a list of 2\n");
  EXPECT_EQ(format(read("").problems), "error: f:1:1: the file is empty; expected a JSON object: { ... }\n");
  EXPECT_EQ(format(read("{}").problems),
            "error: f:1:1: train_batch_size: the batch size is not defined; set train_batch_size or "
            "train_micro_batch_size_per_gpu to a number, or pass --per_device_train_batch_size (cleave "
            "train, Trainer)\n");
}

TEST(ReadConfig, AFileOfNonsenseEndsAfterAHundredProblems) {
  std::string text = "{\"train_batch_size\": 1";
  for (int i = 0; i < 5000; ++i) text += ", \"k" + std::to_string(i) + "\": 1";
  EXPECT_LE(read(text + "}").problems.size(), 110u);
}

TEST(ReadConfigFile, SaysWhatIsWrongWithTheFile) {
  const Scratch scratch;
  EXPECT_EQ(format(read_ds_config_file(scratch.folder()).problems),
            "error: " + scratch.folder().string() + ": is a directory; name a JSON file in it\n");
  const std::string file = scratch.path("c.json");
  EXPECT_EQ(format(read_ds_config_file(file).problems),
            "error: " + file + ": cannot be read: No such file or directory\n");
  std::ofstream(file) << std::string(3 << 20, ' ');
  EXPECT_NE(format(read_ds_config_file(file).problems).find("bytes, expected at most"), std::string::npos);
  std::ofstream(file) << "{\"train_batch_size\": 4, \"stage\": 1}";
  try {
    require_ds_config_file(file);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.exit(), Exit::usage);
    EXPECT_EQ(std::string(e.what()),
              file + ":1:25: stage: unknown key; did you mean zero_optimization.stage?");
  }
  const ReadResult base64 =
      read_ds_config_file("eyJ0cmFpbl9iYXRjaF9zaXplIjogNn0=");  // {"train_batch_size": 6}
  EXPECT_TRUE(base64.ok()) << format(base64.problems);
  EXPECT_EQ(base64.config.train_batch_size, 6);
  EXPECT_EQ(format(read_ds_config_file("eyJ4IjogIn5_fj8ifQ").problems),  // {"x": "~\x7f~?"}, without its "="
            "error: base64:1:1: train_batch_size: the batch size is not defined; set train_batch_size or "
            "train_micro_batch_size_per_gpu to a number, or pass --per_device_train_batch_size (cleave "
            "train, Trainer)\n"
            "warning: base64:1:2: x: unknown key; it has no effect\n");
  EXPECT_LT(format(read_ds_config_file(std::string(9999, 'a')).problems).size(), 300u);
  std::ofstream(file) << "{\"train_batch_size\": 4}";
  EXPECT_EQ(require_ds_config_file(file).train_micro_batch_size_per_gpu, 4);
}

}  // namespace
}  // namespace cleave::config
