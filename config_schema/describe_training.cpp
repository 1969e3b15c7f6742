#include "config_schema/keys.h"

namespace cleave::config {
namespace {

const std::vector<std::string> kPrecisionNames = {"fp32", "float32",  "torch.float32", "float",
                                                  "fp16", "float16",  "torch.float16", "half",
                                                  "bf16", "bfloat16", "torch.bfloat16"};

constexpr const char* kMasters =
    "masters stay in fp32, which takes 2 bytes more per parameter, divided by the data-parallel ranks; "
    "the plan counts them";
constexpr const char* kExact = "cleave.exact_sums is true: gradients are summed as 64-bit integers";

constexpr const char* kElastic = "elasticity.enabled is true and computes it";

void describe_batch(Keys& k, DsConfig& c) {
  constexpr double kMost = 1e12;
  k.section("", "");
  k.honoured("train_batch_size", &c.train_batch_size, "samples per optimizer step over all ranks")
      .in(1, kMost)
      .or_null()
      .inert_if(c.elasticity.enabled, kElastic);
  k.honoured("train_micro_batch_size_per_gpu", &c.train_micro_batch_size_per_gpu,
             "samples per rank in one forward and backward pass")
      .in(1, kMost)
      .or_null()
      .inert_if(c.elasticity.enabled, kElastic);
  k.honoured("gradient_accumulation_steps", &c.gradient_accumulation_steps,
             "micro-batches per optimizer step")
      .in(1, kMost)
      .or_null()
      .inert_if(c.elasticity.enabled, kElastic);
  k.honoured("sequence_parallel_size", &c.sequence_parallel_size,
             "number of ranks that split each sequence and, in attention, the heads (DeepSpeed-Ulysses); 0, "
             "1 and null: off")
      .in(0, 100'000)
      .or_null();
  k.honoured("steps_per_print", &c.steps_per_print,
             "prints a line every N steps; 0 or null: none, or in cleave train the progress bar only")
      .at_least(0)
      .or_null()
      .or_infinity();
  k.honoured("dataloader_drop_last", &c.dataloader_drop_last,
             "drops the samples that do not fill the last batch of an epoch, instead of wrapping around");
}

void describe_elasticity(Keys& k, ElasticityConfig& e) {
  k.section("elasticity", "batch sizes for many numbers of ranks");
  k.honoured(
      "enabled", &e.enabled,
      "computes the three batch sizes: a train_batch_size that many numbers of data-parallel ranks divide");
  constexpr double kMost = 1e9;
  k.honoured("max_train_batch_size", &e.max_train_batch_size, "largest train_batch_size").in(1, kMost);
  k.honoured("micro_batch_sizes", &e.micro_batch_sizes, "possible samples per rank in one pass").in(1, kMost);
  k.honoured("min_gpus", &e.min_gpus, "smallest number of ranks").in(1, kMost);
  k.honoured("max_gpus", &e.max_gpus, "largest number of ranks; 0: all that a batch divides into")
      .in(0, kMost);
  const bool by_nodes = e.version != 0.1;
  k.honoured("num_gpus_per_node", &e.num_gpus_per_node, "ranks per node; ranks are added in whole nodes")
      .in(1, kMost)
      .inert_if(!by_nodes, "elasticity.version is 0.1");
  k.honoured("model_parallel_size", &e.model_parallel_size,
             "ranks that share a sample: tensor, sequence and pipeline ranks")
      .in(1, kMost)
      .inert_if(!by_nodes, "elasticity.version is 0.1");
  k.no_effect("min_time", "i=0", "DeepSpeed does not read it either; a scheduler may");
  k.honoured("prefer_larger_batch", &e.prefer_larger_batch,
             "of batches with equally many numbers of ranks, takes the largest; false: the smallest");
  k.honoured("ignore_non_elastic_batch_info", &e.ignore_non_elastic_batch_info,
             "ignores the three batch keys; false: they are an error with elasticity.enabled");
  k.honoured("version", &e.version, "rule: 0.1 (ranks) or 0.2 (nodes)").in(0.1, 0.2);
}

void describe_gradients(Keys& k, DsConfig& c) {
  k.honoured("gradient_clipping", &c.gradient_clipping,
             "largest global L2 norm of the gradients; 0: no clipping")
      .at_least(0);
  k.honoured("prescale_gradients", &c.prescale_gradients,
             "divides gradients by the data-parallel size before the sum")
      .inert_if(c.exact_sums, kExact);
  k.honoured("gradient_predivide_factor", &c.gradient_predivide_factor,
             "divides gradients by this value before the sum and multiplies by it after the sum")
      .above(0)
      .inert_if(c.exact_sums, kExact);
  k.honoured("gradient_allreduce_op", std::monostate{},
             "mean or sum of the gradients over the data-parallel ranks")
      .one_of({"mean", "sum"})
      .ignoring_case();
  k.list.back().type = Type::text, k.list.back().default_text = "\"mean\"";
  k.honoured("communication_data_type", &c.communication_data_type, "type of gradients in collectives")
      .one_of({"fp32", "fp16", "bf16"})
      .ignoring_case()
      .inert_if(c.exact_sums, kExact);
}

void describe_precision(Keys& k, DsConfig& c) {
  k.section("fp16", "half precision with loss scaling");
  Fp16Config& f = c.fp16;
  k.honoured("enabled", &f.enabled, "fp16 weights and gradients, fp32 masters, a scaled loss");
  const bool fixed = f.loss_scale > 0;
  const std::string why_fixed = "fp16.loss_scale is fixed";
  const bool plain = c.zero.stage == 0 && c.deepspeed_stage0_loss_scale;
  const std::string why_plain = "cleave.deepspeed_stage0_loss_scale is true";
  k.honoured("loss_scale", &f.loss_scale, "fixed loss scale; 0: dynamic").at_least(0).not_boolean();
  k.honoured("initial_scale_power", &f.initial_scale_power, "initial loss scale, as a power of 2")
      .in(0, 126)
      .inert_if(fixed, why_fixed);
  k.honoured("loss_scale_window", &f.loss_scale_window, "steps without overflow before the scale doubles")
      .at_least(1)
      .not_boolean()
      .inert_if(fixed, why_fixed);
  k.honoured("hysteresis", &f.hysteresis, "overflows before the scale is halved")
      .at_least(1)
      .inert_if(fixed, why_fixed)
      .inert_if(!fixed && plain, why_plain);
  k.honoured("consecutive_hysteresis", &f.consecutive_hysteresis,
             "a step without overflow restores the hysteresis")
      .inert_if(fixed, why_fixed)
      .inert_if(!fixed && plain, why_plain);
  k.honoured("min_loss_scale", &f.min_loss_scale,
             "minimum loss scale; an overflow at this value ends the training; at least 1 unless the scale "
             "is fixed")
      .at_least(0)
      .inert_if(fixed, why_fixed);
  k.list.back().type = Type::integer, k.list.back().also = " (1 unless fp16.loss_scale is fixed)";
  k.no_effect("auto_cast", "b=false", "the model converts token ids and features itself");
  k.warned("fp16_master_weights_and_grads", "b=false", kMasters);

  k.section("bf16", "bfloat16 training");
  k.honoured("enabled", &c.bf16_enabled, "bf16 weights and gradients, fp32 masters");
  k.honoured("check_grad_overflow", &c.check_grad_overflow,
             "skips a step if the gradients are not finite; false writes them to the weights")
      .inert_if(c.exact_sums, kExact);
  k.no_effect("immediate_grad_update", "b=false",
              "each gradient is added to its accumulator as soon as it is available");
  k.warned("bf16_master_weights_and_grads", "b=false", kMasters);
  k.warned("bf16_optimizer_states", "b=false",
           "optimizer states stay in fp32, which takes 2 bytes more per parameter and state (4 with Adam), "
           "divided by the data-parallel ranks; the plan counts them");

  k.section("data_types", "types of internal values");
  k.honoured("grad_accum_dtype", &c.grad_accum_dtype, "type of gradient accumulation; null: the model's type")
      .one_of(kPrecisionNames)
      .inert_if(c.exact_sums, kExact);
  k.no_effect("param_dtype", "s?=null", "fp16.enabled and bf16.enabled decide the type of the weights")
      .one_of(kPrecisionNames);
  k.no_effect("buffer_dtype", "s?=null",
              "built-in models have no buffers; buffers of a PyTorch module get this type")
      .one_of(kPrecisionNames);
  k.refused("keep_in_fp32_modules", "a=\"auto\"", "all buffers of a model have one type", "[]");
}

// Schedule names are case-sensitive. A schedule without a name belongs to files without a schedule.
std::vector<std::string> names_in_files() {
  const std::vector<std::string> all = names_of<SchedulerType>();
  return {all.begin() + 1, all.begin() + kSchedulersInFiles};
}

// Restricts the keys since `first` to the types that have them in a row; keys without a row apply
// to all types.
void read_by_types(Keys& k, size_t first, std::span<const TypeRow> rows) {
  for (size_t i = first; i < k.list.size(); ++i) {
    Key& key = k.list[i];
    const std::string_view name = std::string_view(key.path).substr(key.path.rfind('.') + 1);
    for (const TypeRow& row : rows)
      if (row.has(name)) key.only_for.emplace_back(row.name);
    if (key.only_for.size() == rows.size()) key.only_for.clear();
  }
}

void describe_monitors(Keys& k, DsConfig& c) {
  k.section("tensorboard", "TensorBoard event files");
  k.honoured("enabled", &c.tensorboard.enabled, "writes event files");
  k.honoured("output_path", &c.tensorboard.output_path,
             "folder of the event files; job_name is a sub-folder");
  k.honoured("job_name", &c.tensorboard.job_name, "sub-folder of output_path");
  k.section("csv_monitor", "one CSV file per metric");
  k.honoured("enabled", &c.csv_monitor.enabled, "writes CSV files");
  k.honoured("output_path", &c.csv_monitor.output_path, "folder of the CSV files; job_name is a sub-folder");
  k.honoured("job_name", &c.csv_monitor.job_name, "sub-folder of output_path");
  k.section("wandb", "Weights & Biases", Front::scripts);
  k.honoured("enabled", &c.wandb.enabled, "the Python package wandb writes the curves of a script")
      .not_in_train(
          "only PyTorch scripts write to Weights & Biases; set cleave.mlflow, tensorboard or csv_monitor");
  k.honoured("group", &c.wandb.group, "group of the run").or_null();
  k.honoured("team", &c.wandb.team, "team of the run").or_null();
  k.honoured("project", &c.wandb.project, "project of the run");
}

}  // namespace

void describe_training(Keys& keys, DsConfig& config) {
  describe_batch(keys, config);
  describe_gradients(keys, config);
  describe_precision(keys, config);
  describe_elasticity(keys, config.elasticity);
  describe_monitors(keys, config);
  describe_tools(keys, config);
  describe_own(keys, config);
  describe_optimizer(keys, config.optimizer);
  describe_scheduler(keys, config.scheduler, config.optimizer);
}

void describe_optimizer(Keys& k, OptimizerConfig& o) {
  k.section("optimizer", "the optimizer");
  k.honoured("type", &o.type, list_of<OptimizerType>() + ", in any case").ignoring_case();
  k.no_effect("legacy_fusion", "b=false", "each optimizer has one implementation");
  k.section("optimizer.params", "optimizer parameters");
  const size_t first = k.list.size();
  k.honoured("lr", &o.lr, "learning rate; a scheduler overrides it; Adagrad: 0.01 if absent").at_least(0);
  k.honoured("weight_decay", &o.weight_decay, "weight decay").at_least(0);
  k.honoured("betas", std::array<double*, 2>{&o.beta1, &o.beta2}, "decay rates of the two moments").in(0, 1);
  k.honoured("eps", &o.eps, "added to the denominator after the square root; Adagrad: 1e-10 if absent")
      .at_least(0);
  k.honoured("bias_correction", &o.bias_correction,
             "divides the moments by 1 - beta^step; Lamb: multiplies the step by sqrt(1 - beta2^step) / (1 - "
             "beta1^step)");
  k.honoured("max_coeff", &o.max_coeff, "upper limit of |parameter| / |update|, a factor of the step")
      .at_least(0);
  k.honoured("min_coeff", &o.min_coeff, "lower limit of |parameter| / |update|").at_least(0);
  k.refused("eps_inside_sqrt", "b=false", "eps is added after the square root");
  k.honoured("adam_w_mode", &o.decoupled, "decoupled weight decay; always true for the type AdamW")
      .inert_if(o.type == OptimizerType::adamw,
                "optimizer.type is AdamW, which always decouples weight decay");
  k.honoured("torch_adam", std::monostate{},
             "PyTorch's defaults: decoupled decay with weight_decay 0.01; any value that is true in Python");
  k.list.back().type = Type::any, k.list.back().default_text = "false";
  k.refused("amsgrad", "b=false", "no AMSGrad variant");
  k.refused("fp32_optimizer_states", "b=true", "optimizer states are kept in fp32");
  k.no_effect("set_grad_none", "b=true", "gradient buffers are overwritten in each step");
  k.honoured("lr_decay", &o.lr_decay, "divides the learning rate by 1 + this * (steps - 1)").at_least(0);
  k.refused("initial_accumulator_value", "n=0", "sums of squares start at zero");
  k.honoured("momentum", &o.momentum, "SGD momentum").at_least(0);
  k.honoured("dampening", &o.dampening, "SGD dampening")
      .inert_if(o.momentum == 0, "optimizer.params.momentum is 0");
  k.honoured("nesterov", &o.nesterov, "Nesterov momentum");
  k.refused("maximize", "b=false", "training minimizes the loss");
  for (const char* name : {"foreach", "fused", "differentiable", "capturable"})
    k.no_effect(name, "b?=null", "selects a PyTorch implementation of the same update");
  k.no_effect("decoupled_weight_decay", "b?=null",
              "optimizer.type and adam_w_mode decide; the value must agree with them");
  read_by_types(k, first, kOptimizers);
}

void describe_scheduler(Keys& k, SchedulerConfig& s, const OptimizerConfig& o) {
  k.section("scheduler", "the learning-rate schedule");
  const std::vector<std::string> names = names_in_files();
  k.honoured("type", &s.type, listed(names) + ", with this exact spelling").one_of(names).or_null();
  k.section("scheduler.params", "scheduler parameters");
  const size_t first = k.list.size();
  k.refused("last_batch_iteration", "i=-1", "a schedule starts at its beginning; a checkpoint continues it");
  k.honoured("warmup_min_lr", &s.warmup_min_lr, "initial learning rate").at_least(0).or_list();
  k.honoured("warmup_max_lr", &s.warmup_max_lr,
             "learning rate after the warm-up; null: the optimizer's; WarmupDecayLR: 0.001 if absent")
      .at_least(0)
      .or_list();
  k.honoured("warmup_num_steps", &s.warmup_num_steps, "warm-up steps; values below 2 count as 2").at_least(0);
  k.honoured("warmup_type", &s.warmup_type, "shape of the warm-up");
  k.honoured("total_num_steps", &s.total_num_steps, "length of the schedule in steps; required").at_least(1);
  k.honoured("warmup_min_ratio", &s.warmup_min_ratio, "initial fraction of the learning rate").in(0, 1);
  k.honoured("cos_min_ratio", &s.cos_min_ratio, "final fraction of the learning rate").in(0, 1);
  k.honoured("cycle_min_lr", &s.cycle_min_lr, "lowest learning rate of the cycle; required")
      .at_least(0)
      .or_list();
  k.honoured("cycle_max_lr", &s.cycle_max_lr, "highest learning rate of the cycle; required")
      .at_least(0)
      .or_list();
  k.honoured("decay_lr_rate", &s.decay_lr_rate, "decay of the learning rate after the cycle").at_least(0);
  k.honoured("cycle_first_step_size", &s.cycle_first_step_size, "steps of the rising half").at_least(1);
  k.honoured("cycle_second_step_size", &s.cycle_second_step_size,
             "steps of the falling half; null: as the rising half")
      .at_least(0);
  k.honoured("cycle_first_stair_count", &s.cycle_first_stair_count, "stairs of the rising half; 0: smooth")
      .at_least(0);
  k.honoured("cycle_second_stair_count", &s.cycle_second_stair_count,
             "stairs of the falling half; null: as the rising half")
      .at_least(0);
  k.honoured("decay_step_size", &s.decay_step_size, "steps per decay after the cycle; 0: none").at_least(0);
  const bool still = !o.has_betas() || !s.cycle_momentum;
  const std::string why = !o.has_betas() ? fmt::format("optimizer.type is {}, which has no betas", o.type)
                                         : "scheduler.params.cycle_momentum is false";
  k.honoured("cycle_momentum", &s.cycle_momentum,
             "moves the first beta opposite to the learning rate; the second becomes 0.99")
      .inert_if(!o.has_betas(), why);
  k.honoured("cycle_min_mom", &s.cycle_min_mom, "lowest momentum").in(0, 1).or_list().inert_if(still, why);
  k.honoured("cycle_max_mom", &s.cycle_max_mom, "highest momentum").in(0, 1).or_list().inert_if(still, why);
  k.honoured("decay_mom_rate", &s.decay_mom_rate, "momentum growth after the cycle").inert_if(still, why);
  k.honoured("lr_range_test_min_lr", &s.lr_range_test_min_lr, "initial learning rate").above(0).or_list();
  k.honoured("lr_range_test_step_size", &s.lr_range_test_step_size, "steps per interval").at_least(1);
  k.honoured("lr_range_test_step_rate", &s.lr_range_test_step_rate, "growth per interval");
  k.honoured("lr_range_test_staircase", &s.lr_range_test_staircase,
             "the rate changes at the end of an interval only");
  read_by_types(k, first, std::span(kSchedulers).first(kSchedulersInFiles));
}

}  // namespace cleave::config
