// Optimizers and schedules that files name and that are not built.
#include <fmt/ranges.h>

#include <algorithm>

#include "config/key_values.h"
#include "config/nearest_key.h"
#include "config/unknown_keys.h"

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

}  // namespace

std::string refusal_of_type(const Key& key, const std::string& name) {
  const bool optimizer = key.path == "optimizer.type";
  const std::string_view what = optimizer ? "optimizer" : "schedule";
  const std::vector<std::string>& others = optimizer ? kOtherOptimizers : kOtherSchedules;
  const std::string choices = fmt::format("{}", fmt::join(key.choices, ", "));
  const bool known = std::any_of(others.begin(), others.end(), [&](const std::string& other) {
    return other == name || (optimizer && lower(other) == lower(name));
  });
  if (known)
    return fmt::format("{} is a known {} that is not built; wanted one of {}", quote(name), what, choices);
  std::vector<std::string> words = key.choices;
  words.insert(words.end(), others.begin(), others.end());
  const std::string near = nearest_word(name, words);
  return fmt::format("there is no {} {}; wanted one of {}{}", what, quote(name), choices,
                     near.empty() ? "" : fmt::format("; did you mean \"{}\"?", near));
}

}  // namespace cleave::config
