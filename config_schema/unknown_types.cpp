// Unsupported optimizers and schedules in files.
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <string_view>

#include "config_schema/key_values.h"
#include "config_schema/nearest_key.h"
#include "config_schema/unknown_keys.h"

namespace cleave::config {
namespace {

const std::vector<std::string> kOtherOptimizers = {
    "OneBitAdam", "ZeroOneAdam", "OneBitLamb", "MuAdam",     "MuAdamW",  "MuSGD",
    "Muon",       "RMSprop",     "NAdam",      "RAdam",      "Adamax",   "Adadelta",
    "ASGD",       "LBFGS",       "Rprop",      "SparseAdam", "Adafactor"};
const std::vector<std::string> kOtherSchedules = {"StepLR",
                                                  "MultiStepLR",
                                                  "ConstantLR",
                                                  "LinearLR",
                                                  "ExponentialLR",
                                                  "PolynomialLR",
                                                  "CosineAnnealingLR",
                                                  "CyclicLR",
                                                  "OneCycleLR",
                                                  "LambdaLR",
                                                  "MultiplicativeLR",
                                                  "SequentialLR",
                                                  "ChainedScheduler",
                                                  "ReduceLROnPlateau",
                                                  "CosineAnnealingWarmRestarts"};

// Names of these types in other libraries.
struct OtherName {
  std::string_view name, type;
};
constexpr OtherName kOtherNames[] = {
    {"adamw_torch", "AdamW"},
    {"adamw_torch_fused", "AdamW"},
    {"adamw_hf", "AdamW"},
    {"adamw_apex_fused", "AdamW"},
    {"fusedadam", "AdamW"},
    {"fusedadamw", "AdamW"},
    {"cpuadam", "AdamW"},
    {"deepspeedcpuadam", "AdamW"},
    {"torch.optim.adamw", "AdamW"},
    {"torch.optim.adam", "Adam"},
    {"fusedlamb", "Lamb"},
    {"fusedlion", "Lion"},
    {"deepspeedcpulion", "Lion"},
    {"deepspeedcpuadagrad", "Adagrad"},
    {"linear", "WarmupDecayLR"},
    {"linearlr", "WarmupDecayLR"},
    {"linear_with_warmup", "WarmupDecayLR"},
    {"polynomial", "WarmupDecayLR"},
    {"cosine", "WarmupCosineLR"},
    {"cosinelr", "WarmupCosineLR"},
    {"cosine_with_warmup", "WarmupCosineLR"},
    {"cosineannealinglr", "WarmupCosineLR"},
    {"constant_with_warmup", "WarmupLR"},
};

std::string other_name(const Key& key, const std::string& name) {
  const std::string plain = lower(name);
  for (const OtherName& other : kOtherNames)
    if (other.name == plain &&
        std::find(key.choices.begin(), key.choices.end(), other.type) != key.choices.end())
      return std::string(other.type);
  return {};
}

}  // namespace

std::string refusal_of_type(const Key& key, const std::string& name) {
  const bool optimizer = key.path == "optimizer.type";
  const std::string_view what = optimizer ? "optimizer" : "schedule";
  const std::vector<std::string>& others = optimizer ? kOtherOptimizers : kOtherSchedules;
  const std::string choices = fmt::format("{}", fmt::join(key.choices, ", "));
  const bool known = std::any_of(others.begin(), others.end(), [&](const std::string& other) {
    return other == name || (optimizer && lower(other) == lower(name));
  });
  std::string near = other_name(key, name);
  constexpr std::string_view removed[] = {"onebitadam", "onebitlamb", "zerooneadam"};
  const bool gone = std::find(std::begin(removed), std::end(removed), lower(name)) != std::end(removed);
  if (known)
    return fmt::format("{} is an unsupported {}{}; expected one of {}{}", quote(name), what,
                       gone ? " and was removed from DeepSpeed in 0.19.8" : "", choices,
                       near.empty() ? "" : fmt::format("; the nearest supported one is \"{}\"", near));
  if (!optimizer && lower(name) == "constant")
    return "a constant rate needs no scheduler; remove the section";
  std::vector<std::string> words = key.choices;
  words.insert(words.end(), others.begin(), others.end());
  if (near.empty()) near = nearest_word(name, words);
  return fmt::format("unknown {} {}; expected one of {}{}", what, quote(name), choices,
                     near.empty() ? "" : fmt::format("; did you mean \"{}\"?", near));
}

}  // namespace cleave::config
