// Options of the Hugging Face Trainer: values for "auto" and for keys that the file omits. They
// must not contradict the file.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "config_schema/key_values.h"
#include "config_schema/reading.h"

namespace cleave::config {
namespace {

// Betas are one key and two options; `item` is the index of the option's value in the list.
struct Pair {
  const char *option, *path;
  int item = -1;
};
constexpr Pair kPairs[] = {
    {"--per_device_train_batch_size", "train_micro_batch_size_per_gpu"},
    {"--gradient_accumulation_steps", "gradient_accumulation_steps"},
    {"--learning_rate", "optimizer.params.lr"},
    {"--learning_rate", "scheduler.params.warmup_max_lr"},
    {"--weight_decay", "optimizer.params.weight_decay"},
    {"--adam_beta1", "optimizer.params.betas", 0},
    {"--adam_beta2", "optimizer.params.betas", 1},
    {"--adam_epsilon", "optimizer.params.eps"},
    {"--max_grad_norm", "gradient_clipping"},
    {"--warmup_steps", "scheduler.params.warmup_num_steps"},
    {"--warmup_ratio", "scheduler.params.warmup_num_steps"},
    {"--fp16", "fp16.enabled"},
    {"--bf16", "bf16.enabled"},
};

// Returns the name in files of a Trainer schedule.
std::string_view counterpart(std::string_view trainers) {
  if (trainers == "linear") return "WarmupDecayLR";
  if (trainers == "constant_with_warmup") return "WarmupLR";
  return trainers == "cosine" ? "WarmupCosineLR" : "";
}

class TrainerOptions {
 public:
  explicit TrainerOptions(Reading& reading) : r_(reading), values_(reading.options.auto_values) {}

  void resolve() {
    for (const Pair& pair : kPairs)
      if (values_.given.contains(pair.option)) apply(pair);
    compare_schedule();
    report();
    if (!is_trainers()) return;
    if (!r_.entry("optimizer.type")) take_optimizer();
    if (!r_.entry("scheduler.type")) take_schedule();
  }

 private:
  // Returns true for a file with an "auto" or a command line with an option.
  bool is_trainers() const {
    return !values_.given.empty() ||
           std::any_of(r_.given.begin(), r_.given.end(), [](const Given& g) { return g.origin == "auto"; });
  }

  void apply(const Pair& pair) {
    const std::string path = pair.path;
    const bool batch = path == "train_micro_batch_size_per_gpu" || path == "gradient_accumulation_steps";
    if (batch && r_.options.micro_batch_size) return;  // no training
    const Key& key = *r_.find(path);
    const AutoAnswer answer = answer_auto(key, r_.options, 0);
    if (!answer.value) return;
    const Given* g = r_.entry(path);
    if (g && g->origin == "auto") return;
    if (g && g->value->kind != JsonValue::Kind::null) return compare(pair, key, *g, *answer.value);
    fill(pair, key, *answer.value);
  }

  void compare(const Pair& pair, const Key& key, const Given& g, const JsonValue& wanted) {
    if (!g.usable) return;  // already an error
    const JsonValue* has = g.value;
    const JsonValue* option = &wanted;
    if (key.or_list_of_one && has->kind == JsonValue::Kind::list) has = &has->items[0];
    if (pair.item >= 0) has = &has->items[size_t(pair.item)], option = &wanted.items[size_t(pair.item)];
    if (!same_value(*has, compact(*option)))
      differs(g.where,
              fmt::format("{} is {}, {} is {}", g.shown, compact(*g.value), pair.option, compact(*option)));
  }

  // Sets a value that the file omits from the option, if the file's optimizer and schedule have the
  // key.
  void fill(const Pair& pair, const Key& key, const JsonValue& value) {
    const std::string section = key.path.substr(0, key.path.find('.'));
    const bool typed = section == "optimizer" || section == "scheduler";
    const Given* at = r_.entry(section + ".type");
    if (typed && !(at && at->usable)) return;  // the Trainer's own, or already an error
    const DsConfig& c = r_.result.config;
    const std::string_view type =
        section == "optimizer" ? name_of(c.optimizer.type) : name_of(c.scheduler.type);
    if (typed && !key.only_for.empty() &&
        std::find(key.only_for.begin(), key.only_for.end(), type) == key.only_for.end()) {
      if (key.path == "scheduler.params.warmup_max_lr") return;  // the schedule has its own rate
      return differs(at->where,
                     fmt::format("{} is {}, which has no {}, {} is {}", at->shown, compact(*at->value),
                                 key.path.substr(key.path.rfind('.') + 1), pair.option, compact(value)));
    }
    if (store_value(key, value)) r_.derived[key.path] = pair.option;
  }

  void compare_schedule() {
    const Given* at = r_.entry("scheduler.type");
    if (!values_.given.contains("--lr_scheduler_type") || !at || !at->usable) return;
    const bool none = at->value->kind == JsonValue::Kind::null;
    if (none ? values_.schedule == "constant" : counterpart(values_.schedule) == at->value->text) return;
    differs(at->where, fmt::format("{} is {}, --lr_scheduler_type is {}", at->shown, compact(*at->value),
                                   values_.schedule));
  }

  void differs(TextPosition where, const std::string& text) {
    if (differences_.empty()) first_ = where;
    differences_ += fmt::format("\n  {}: {}", r_.text_of(where), text);
  }

  void report() {
    if (differences_.empty()) return;
    r_.error(first_, "",
             "the options contradict the file; remove them, make them equal, or write \"auto\" in the file:" +
                 differences_);
  }

  std::string origin(const char* option) const {
    return values_.given.contains(option) ? option : "Trainer's default";
  }

  void take_optimizer() {
    OptimizerConfig& o = r_.result.config.optimizer;
    if (!values_.lr) return;  // the Trainer's values are unknown
    o.type = OptimizerType::adamw, r_.derived["optimizer.type"] = "Trainer's default";
    const auto take = [&](const char* path, const char* option, const std::optional<double>& from,
                          double& to) {
      if (from) to = *from, r_.derived[path] = origin(option);
    };
    take("optimizer.params.lr", "--learning_rate", values_.lr, o.lr);
    take("optimizer.params.weight_decay", "--weight_decay", values_.weight_decay, o.weight_decay);
    take("optimizer.params.eps", "--adam_epsilon", values_.eps, o.eps);
    take("optimizer.params.betas", "--adam_beta2", values_.beta2, o.beta2);
    take("optimizer.params.betas", "--adam_beta1", values_.beta1, o.beta1);
    if (values_.given.contains("--adam_beta2")) r_.derived["optimizer.params.betas"] = "--adam_beta2";
  }

  void take_schedule() {
    SchedulerConfig& s = r_.result.config.scheduler;
    if (values_.schedule.empty()) return;
    s.type = choice_of<SchedulerType>(values_.schedule).value_or(SchedulerType::constant);
    r_.derived["scheduler.type"] = origin("--lr_scheduler_type");
    s.total_num_steps = values_.total_steps.value_or(0);
    s.warmup_num_steps = warmup_steps(values_).value_or(0);
    const bool ends = kSchedulers[size_t(s.type)].has("total_num_steps");
    if (ends && !values_.total_steps)
      r_.result.notes.push_back(
          {"", "scheduler.params.total_num_steps", "null", origin("--lr_scheduler_type"), kNotKnown,
           fmt::format("the {} schedule ends with the training; pass --steps", s.type)});
  }

  Reading& r_;
  const AutoValues& values_;
  std::string differences_;
  TextPosition first_;
};

}  // namespace

std::optional<int64_t> warmup_steps(const AutoValues& v) {
  const bool counted = v.warmup_steps && (*v.warmup_steps > 0 || v.warmup_ratio.value_or(0) == 0);
  if (counted && *v.warmup_steps >= 1) return int64_t(*v.warmup_steps);
  const std::optional<double> share = counted ? v.warmup_steps : v.warmup_ratio;
  if (!share) return std::nullopt;
  if (*share == 0) return 0;
  if (!v.total_steps) return std::nullopt;
  return int64_t(std::ceil(double(*v.total_steps) * *share));
}

std::string origin_of_auto(std::string_view path, const AutoValues& values) {
  if (path == "scheduler.params.total_num_steps") return "--steps";
  std::string origin;
  for (const Pair& pair : kPairs) {
    if (path != pair.path) continue;
    if (values.given.contains(pair.option)) return pair.option;
    origin = "Trainer's default";
  }
  return origin;
}

void resolve_trainer_options(Reading& reading) { TrainerOptions(reading).resolve(); }

}  // namespace cleave::config
