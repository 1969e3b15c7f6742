#include <gtest/gtest.h>

#include "config_schema/read_config.h"
#include "config_schema/summary.h"

namespace cleave::config {
namespace {

const char* kTrainerFile = R"({
  "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto",
  "gradient_clipping": "auto",
  "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}},
  "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_min_lr": "auto", "warmup_max_lr": "auto",
                                                    "warmup_num_steps": "auto", "total_num_steps": "auto"}},
  "fp16": {"enabled": "auto", "loss_scale": 0}, "bf16": {"enabled": "auto"},
  "zero_optimization": {"stage": 3, "overlap_comm": "auto", "reduce_bucket_size": "auto",
                        "stage3_prefetch_bucket_size": "auto", "stage3_param_persistence_threshold": "auto"}})";

ReadOptions of_trainer() {
  ReadOptions o;
  o.world_size = 4;
  o.auto_values = {.micro_batch_size = 8,
                   .gradient_accumulation_steps = 2,
                   .total_steps = 500,
                   .warmup_steps = 50,
                   .hidden_size = 770,
                   .lr = 5e-5,
                   .beta1 = 0.8,
                   .beta2 = 0.95,
                   .eps = 1e-7,
                   .weight_decay = 0.1,
                   .max_grad_norm = 0.5,
                   .fp16 = false,
                   .bf16 = true};
  return o;
}

TEST(AutoValues, AreFilledInAsTheTrainerDoes) {
  const ReadResult r = read_ds_config(kTrainerFile, "f", of_trainer());
  ASSERT_TRUE(r.ok()) << format(r.problems);
  const DsConfig& c = r.config;
  EXPECT_EQ(c.train_batch_size, 64);
  EXPECT_EQ(c.train_micro_batch_size_per_gpu, 8);
  EXPECT_EQ(c.gradient_accumulation_steps, 2);
  EXPECT_EQ(c.gradient_clipping, 0.5);
  EXPECT_EQ(c.optimizer.lr, 5e-5);
  EXPECT_EQ(c.optimizer.beta1, 0.8);
  EXPECT_EQ(c.optimizer.beta2, 0.95);
  EXPECT_EQ(c.optimizer.eps, 1e-7);
  EXPECT_EQ(c.optimizer.weight_decay, 0.1);
  EXPECT_EQ(c.scheduler.warmup_min_lr, 0);
  EXPECT_EQ(c.scheduler.warmup_max_lr, 5e-5);
  EXPECT_EQ(c.scheduler.warmup_num_steps, 50);
  EXPECT_EQ(c.scheduler.total_num_steps, 500);
  EXPECT_EQ(c.precision, Precision::bf16);
  EXPECT_TRUE(c.zero.overlap_comm);
  EXPECT_EQ(c.zero.reduce_bucket_size, 770 * 770);
  EXPECT_EQ(c.zero.stage3_prefetch_bucket_size, 533610);  // 0.9 * 770^2
  EXPECT_EQ(c.zero.stage3_param_persistence_threshold, 7700);
}

TEST(AutoValues, TheStage3ValuesAreFilledInByStage3Only) {
  std::string text = kTrainerFile;
  text.replace(text.find("\"stage\": 3"), 10, "\"stage\": 2");
  const ReadResult r = read_ds_config(text, "f", of_trainer());
  ASSERT_TRUE(r.ok()) << format(r.problems);
  EXPECT_EQ(r.config.zero.reduce_bucket_size, 770 * 770);
  EXPECT_EQ(r.config.zero.stage3_prefetch_bucket_size, 50'000'000);
  EXPECT_EQ(r.config.zero.stage3_param_persistence_threshold, 100'000);
  EXPECT_FALSE(r.config.zero.overlap_comm);
}

TEST(AutoValues, UnknownValuesAreNamed) {
  const ReadResult r = read_ds_config(kTrainerFile, "f", {});
  const std::string all = format(r.problems);
  for (const char* what : {"f:2:3: train_batch_size: the batch size is not defined; set train_batch_size or",
                           "gradient_clipping: \"auto\" stands for the largest gradient norm",
                           "the learning rate", "Adam's two betas", "Adam's epsilon", "the weight decay",
                           "the number of warm-up steps", "the number of training steps"})
    EXPECT_NE(all.find(what), std::string::npos) << what << "\n" << all;
}

TEST(AutoValues, AreTheDefaultInDeepSpeedsStrictSectionsAndAnErrorElsewhere) {
  const ReadResult strict = read_ds_config(
      R"({"train_batch_size": 4, "steps_per_print": "auto", "fp16": {"enabled": true, "loss_scale_window": "auto"},
          "zero_optimization": {"stage": "auto", "offload_optimizer": {"device": "auto", "pin_memory": "auto"}}})",
      "f");
  ASSERT_TRUE(strict.ok()) << format(strict.problems);
  EXPECT_EQ(strict.config.fp16.loss_scale_window, 1000);
  EXPECT_EQ(strict.config.zero.stage, 2);  // Accelerate's value
  EXPECT_EQ(strict.config.zero.offload_optimizer.device, OffloadDevice::none);
  EXPECT_EQ(strict.config.steps_per_print, 0);
  EXPECT_NE(
      format(strict.notes).find("zero_optimization.stage = 2 (auto, the values that Accelerate fills in"),
      std::string::npos);
  EXPECT_NE(differences(strict).find("zero_optimization.stage = 2"), std::string::npos);
  const ReadResult loose = read_ds_config(R"({"train_batch_size": 4, "prescale_gradients": "auto",
                                              "optimizer": {"type": "auto"}})",
                                          "f");
  EXPECT_EQ(format(loose.problems),
            "error: f:1:47: prescale_gradients: \"auto\" is not supported for this key; write true or false\n"
            "error: f:2:69: optimizer.type: \"auto\" is not supported for this key; write one of \"Adam\", "
            "\"AdamW\", "
            "\"Lamb\", "
            "\"Lion\", \"Adagrad\", \"SGD\"\n");
}

TEST(AutoValues, ATotalBatchLeftOpenIsMadeOfTheTrainersOptions) {
  ReadOptions o = of_trainer();
  EXPECT_EQ(read_ds_config(R"({"train_batch_size": "auto"})", "f", o).config.train_batch_size, 8 * 2 * 4);
  o.auto_values.given = {"--per_device_train_batch_size", "--gradient_accumulation_steps"};
  const ReadResult r = read_ds_config(R"({"train_batch_size": "auto"})", "f", o);
  ASSERT_TRUE(r.ok()) << format(r.problems);
  EXPECT_EQ(r.config.train_batch_size, 8 * 2 * 4);
  EXPECT_EQ(std::count_if(r.notes.begin(), r.notes.end(),
                          [](const Note& n) { return n.path == "train_batch_size"; }),
            1);
  o.auto_values.micro_batch_size = std::nullopt, o.auto_values.default_micro_batch_size = 3;
  EXPECT_EQ(read_ds_config(R"({"train_batch_size": "auto"})", "f", o).config.train_micro_batch_size_per_gpu,
            3);
}

TEST(AutoValues, UnknownStepsStayUndefinedWithoutTraining) {
  const char* text = R"({"train_batch_size": 4, "scheduler": {"type": "WarmupDecayLR",
    "params": {"total_num_steps": "auto", "warmup_num_steps": "auto"}}})";
  ReadOptions o;
  o.auto_values.warmup_ratio = 0.1;
  EXPECT_FALSE(read_ds_config(text, "f", o).ok());
  o.steps_may_be_open = o.strict = true;
  const ReadResult r = read_ds_config(text, "f", o);
  ASSERT_TRUE(r.problems.empty()) << format(r.problems);
  int64_t open = 0;
  for (const Note& n : r.notes) open += n.status == kNotKnown;
  EXPECT_EQ(open, 2);
  EXPECT_NE(format(r.notes).find("the number of training steps, set by --steps"), std::string::npos);
  o.auto_values.total_steps = 500;
  const DsConfig c = read_ds_config(text, "f", o).config;
  EXPECT_EQ(c.scheduler.total_num_steps, 500);
  EXPECT_EQ(c.scheduler.warmup_num_steps, 50);
}

TEST(AutoValues, ABatchSizeLeftOpenFollowsFromTheOthers) {
  const ReadResult r = read_ds_config(
      R"({"train_batch_size": 64, "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": 2})",
      "f", {});
  ASSERT_TRUE(r.ok()) << format(r.problems);
  EXPECT_EQ(r.config.train_micro_batch_size_per_gpu, 32);
}

}  // namespace
}  // namespace cleave::config
