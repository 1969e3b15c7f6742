// Options of the Hugging Face Trainer with a file: values that they fill in, and contradictions.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include "config_schema/summary.h"

namespace cleave::config {
namespace {

// Returns the options of a command line with only the named options.
ReadOptions trainer(std::set<std::string> given = {}) {
  ReadOptions o;
  o.auto_values = {.micro_batch_size = {},
                   .gradient_accumulation_steps = {},
                   .total_steps = 200,
                   .warmup_steps = 0,
                   .hidden_size = 64,
                   .default_micro_batch_size = 8,
                   .lr = 5e-5,
                   .beta1 = 0.9,
                   .beta2 = 0.999,
                   .eps = 1e-8,
                   .weight_decay = 0,
                   .max_grad_norm = 1,
                   .fp16 = {},
                   .bf16 = {}};
  o.auto_values.schedule = "linear", o.auto_values.given = std::move(given);
  return o;
}

std::string lines(const ReadResult& r) {
  EXPECT_TRUE(r.ok()) << format(r.problems);
  const std::vector<NamedValue> lines = update_lines(r);
  return lines[0].name + ": " + lines[0].value + "\n" + lines[1].name + ": " + lines[1].value;
}

TEST(TrainerOptions, AFileWithoutOptimizerAndTrainerValuesKeepsTheDefault) {
  const ReadResult r = read_ds_config(R"({"train_batch_size": 4})", "f", trainer());
  EXPECT_EQ(r.config.optimizer.lr, 1e-3);
  EXPECT_EQ(r.config.scheduler.type, SchedulerType::constant);
  EXPECT_EQ(
      lines(r),
      "optimizer: AdamW, lr 0.001, betas 0.9 0.999, weight_decay 0 (default)\nschedule: constant (default)");
}

TEST(TrainerOptions, AnyAutoEnablesTheTrainerDefaults) {
  const ReadResult r = read_ds_config(R"({"train_batch_size": "auto"})", "f", trainer());
  EXPECT_EQ(r.config.optimizer.type, OptimizerType::adamw);
  EXPECT_EQ(r.config.optimizer.lr, 5e-5);
  EXPECT_EQ(r.config.scheduler.type, SchedulerType::trainer_linear);
  EXPECT_EQ(r.config.scheduler.total_num_steps, 200);
  EXPECT_EQ(r.config.scheduler.warmup_num_steps, 0);
  EXPECT_EQ(lines(r),
            "optimizer: AdamW, lr 5e-05, betas 0.9 0.999, weight_decay 0 (Trainer's default)\n"
            "schedule: linear (Trainer's default), warm-up of 0 steps, ends at step 200");
}

TEST(TrainerOptions, AnyTrainerOptionEnablesThemAndIsNamed) {
  ReadOptions o = trainer({"--learning_rate", "--warmup_ratio", "--adam_beta2", "--lr_scheduler_type"});
  o.auto_values.lr = 0.25, o.auto_values.warmup_ratio = 0.101, o.auto_values.beta2 = 0.95;
  o.auto_values.schedule = "cosine";
  const ReadResult r = read_ds_config(R"({"train_batch_size": 4})", "f", o);
  EXPECT_EQ(r.config.scheduler.warmup_num_steps, 21);  // rounded up
  EXPECT_EQ(lines(r),
            "optimizer: AdamW (Trainer's default), lr 0.25 (--learning_rate), betas 0.9 0.95 (--adam_beta2), "
            "weight_decay 0 (Trainer's default)\n"
            "schedule: cosine (--lr_scheduler_type), warm-up of 21 steps, ends at step 200");
}

// get_warmup_steps() of transformers 5.24: int(x) from 1 on, ceil(steps * x) below.
TEST(TrainerOptions, AWarmUpBelowOneStepIsAShareOfAllSteps) {
  for (const auto& [given, steps] :
       {std::pair{0.0, 0}, {0.0999, 20}, {0.5, 100}, {0.001, 1}, {1.0, 1}, {7.9, 7}}) {
    ReadOptions o = trainer({"--warmup_steps"});
    o.auto_values.warmup_steps = given;
    EXPECT_EQ(warmup_steps(o.auto_values), steps) << given;
    const ReadResult r = read_ds_config(
        R"({"train_batch_size": 4, "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": "auto"}}})",
        "f", o);
    EXPECT_EQ(r.config.scheduler.warmup_num_steps, steps) << format(r.problems);
  }
  AutoValues open;
  open.warmup_steps = 0.5;
  EXPECT_EQ(warmup_steps(open), std::nullopt);
}

TEST(TrainerOptions, AnOptionFillsInWhatTheFilesOwnOptimizerAndScheduleLeaveOut) {
  ReadOptions o = trainer({"--weight_decay", "--warmup_steps", "--max_grad_norm", "--bf16"});
  o.auto_values.weight_decay = 0.1, o.auto_values.warmup_steps = 7, o.auto_values.max_grad_norm = 2,
  o.auto_values.bf16 = true;
  const ReadResult r = read_ds_config(
      R"({"train_batch_size": 4, "optimizer": {"type": "AdamW", "params": {"lr": 0.5}},
          "scheduler": {"type": "WarmupLR"}})",
      "f", o);
  EXPECT_EQ(r.config.optimizer.weight_decay, 0.1);
  EXPECT_EQ(r.config.scheduler.warmup_num_steps, 7);
  EXPECT_EQ(r.config.gradient_clipping, 2);
  EXPECT_EQ(r.config.precision, Precision::bf16);
  EXPECT_EQ(lines(r),
            "optimizer: AdamW (file), lr 0.5 (file), betas 0.9 0.999 (DeepSpeed's default), weight_decay 0.1 "
            "(--weight_decay)\nschedule: WarmupLR (file), warm-up of 7 steps (--warmup_steps)");
}

TEST(TrainerOptions, TheFilesOptimizerStaysWithATrainersSchedule) {
  const ReadResult r = read_ds_config(
      R"({"train_batch_size": 4, "gradient_clipping": "auto", "optimizer": {"type": "SGD", "params": {"lr": 0.5}}})",
      "f", trainer());
  EXPECT_EQ(r.config.optimizer.type, OptimizerType::sgd);
  EXPECT_EQ(r.config.optimizer.lr, 0.5);
  EXPECT_EQ(r.config.scheduler.type, SchedulerType::trainer_linear);
}

TEST(TrainerOptions, AllPairsThatContradictTheFileAreOneErrorWithBothValues) {
  ReadOptions o = trainer({"--learning_rate", "--per_device_train_batch_size", "--adam_beta1", "--fp16",
                           "--warmup_steps", "--lr_scheduler_type", "--max_grad_norm"});
  o.auto_values.lr = 5e-5, o.auto_values.micro_batch_size = 2, o.auto_values.fp16 = true;
  o.auto_values.warmup_steps = 3;
  const ReadResult r = read_ds_config(R"({"train_micro_batch_size_per_gpu": 4, "gradient_clipping": 1.0,
 "fp16": {"enabled": false},
 "optimizer": {"type": "AdamW", "params": {"lr": 0.001, "betas": [0.8, 0.999]}},
 "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 0.1, "warmup_num_steps": 3}}})",
                                      "f", o);
  EXPECT_EQ(format(r.problems),
            "error: f:1:2: the options contradict the file; remove them, make them equal, or write "
            "\"auto\" in the file:\n"
            "  f:1:2: train_micro_batch_size_per_gpu is 4, --per_device_train_batch_size is 2\n"
            "  f:3:44: optimizer.params.lr is 0.001, --learning_rate is 5e-05\n"
            "  f:4:47: scheduler.params.warmup_max_lr is 0.1, --learning_rate is 5e-05\n"
            "  f:3:57: optimizer.params.betas is [0.8, 0.999], --adam_beta1 is 0.9\n"
            "  f:2:11: fp16.enabled is false, --fp16 is true\n"
            "  f:4:16: scheduler.type is \"WarmupLR\", --lr_scheduler_type is linear\n");
}

TEST(TrainerOptions, EqualValuesAndThoseOfOptionsThatWereNotGivenAreFine) {
  ReadOptions o = trainer({"--learning_rate", "--adam_beta2", "--lr_scheduler_type"});
  o.auto_values.lr = 1e-3;
  const ReadResult r = read_ds_config(R"({"train_batch_size": 4, "gradient_clipping": 7,
 "optimizer": {"type": "AdamW", "params": {"lr": 0.001, "betas": [0.8, 0.999]}},
 "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_max_lr": [0.001], "total_num_steps": 9}}})",
                                      "f", o);
  EXPECT_TRUE(r.ok()) << format(r.problems);
}

TEST(TrainerOptions, AnOptionThatTheFilesOptimizerDoesNotHaveContradictsIt) {
  const ReadResult r = read_ds_config(R"({"train_batch_size": 4, "optimizer": {"type": "SGD"}})", "f",
                                      trainer({"--adam_beta1"}));
  EXPECT_NE(format(r.problems).find("optimizer.type is \"SGD\", which has no betas, --adam_beta1 is"),
            std::string::npos)
      << format(r.problems);
}

TEST(TrainerOptions, ABatchThatTheOptionsDoNotMakeNamesThem) {
  ReadOptions o = trainer({"--per_device_train_batch_size"});
  o.auto_values.micro_batch_size = 3;
  const ReadResult r = read_ds_config(R"({"train_batch_size": 4, "gradient_accumulation_steps": 2})", "f", o);
  EXPECT_NE(
      format(r.problems).find("train_micro_batch_size_per_gpu comes from --per_device_train_batch_size"),
      std::string::npos)
      << format(r.problems);
}

TEST(TrainerOptions, AnUnknownEndOfAScheduleIsReported) {
  ReadOptions o = trainer();
  o.auto_values.total_steps = std::nullopt, o.steps_may_be_open = true;
  const ReadResult r = read_ds_config(R"({"train_batch_size": "auto"})", "f", o);
  EXPECT_NE(lines(r).find("ends at the last step"), std::string::npos);
  EXPECT_NE(format(r.notes).find("the linear schedule ends with the training; pass --steps"),
            std::string::npos);
}

TEST(Differences, AreTheKeysThatTheBatchOptimizerAndScheduleLinesDoNotShow) {
  const ReadResult r = read_ds_config(
      R"({"train_batch_size": 4, "gradient_clipping": 1.0, "steps_per_print": 5, "prescale_gradients": false,
          "optimizer": {"type": "AdamW"}, "zero_optimization": {"stage": 2, "contiguous_gradients": false}})",
      "f", {});
  EXPECT_EQ(differences(r), "steps_per_print = 5, zero_optimization.stage = 2");
  EXPECT_EQ(differences(read_ds_config(R"({"train_batch_size": 4})", "f", {})), "");
}

TEST(Summary, ListsTheBatchDecidedValuesAndKeysWithoutEffect) {
  ReadOptions options;
  options.world_size = 2;
  const ReadResult r = read_ds_config(
      R"({"train_batch_size": 12, "train_micro_batch_size_per_gpu": 2, "zero_optimization":
          {"stage": 3, "contiguous_gradients": true, "overlap_comm": true, "reduce_bucket_size": "auto"}})",
      "f", options);
  ASSERT_TRUE(r.ok()) << format(r.problems);
  EXPECT_EQ(batch_value(r.config), "12 = 2 samples x 3 micro-batches x 2 data-parallel ranks");
  EXPECT_NE(decided(r).find("zero_optimization.reduce_bucket_size = "), std::string::npos) << decided(r);
  EXPECT_EQ(decided(r).find("gradient_accumulation_steps"), std::string::npos) << "in the line of the batch";
  EXPECT_EQ(decided(r).find("overlap_comm"), std::string::npos) << "the file states it";
  const std::vector<std::string> lines = unusual(r);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_TRUE(lines[0].starts_with("zero_optimization.contiguous_gradients = true: no effect here: "))
      << lines[0];
}

TEST(TrainerOptions, ComparedValuesAreThoseThatAllRanksMustHaveAlike) {
  const auto values = [](const char* text) {
    const ReadResult r = read_ds_config(text, "f", {});
    EXPECT_TRUE(r.ok()) << format(r.problems);
    return compared_values(r.config);
  };
  const auto plain = values(R"({"train_batch_size": 4, "bf16": {"enabled": true}})");
  EXPECT_EQ(
      plain,
      values(R"({"bf16": {"enabled": true}, "train_batch_size": 4, "name": "n", "gradient_clipping": 1.0,
    "tensorboard": {"enabled": true, "output_path": "x"}, "aio": {"block_size": 4096}})"));
  for (const char* other :
       {R"("gradient_clipping": 0.5)", R"("optimizer": {"type": "SGD", "params": {"lr": 0.001}})",
        R"("gradient_allreduce_op": "sum")", R"("cleave": {"freeze": ["*.mlp.*"]})",
        R"("cleave": {"lora": {"targets": "all-linear"}})", R"("zero_optimization": {"stage": 2})",
        R"("activation_checkpointing": {"interval": 2})"})
    EXPECT_NE(
        plain,
        values(fmt::format(R"({{"train_batch_size": 4, "bf16": {{"enabled": true}}, {}}})", other).c_str()))
        << other;
}

}  // namespace
}  // namespace cleave::config
