#include "app/adapters.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "checkpoint/manifest.h"
#include "core/adapter_rule.h"
#include "core/json_path.h"
#include "model/family.h"

namespace cleave::app {
namespace {

using nlohmann::json;

constexpr std::string_view kWeight = ".weight";
constexpr const char *kA = ".lora_A.weight", *kB = ".lora_B.weight";

std::string stem_of(const std::string& weight) {
  return weight.ends_with(kWeight) ? weight.substr(0, weight.size() - kWeight.size()) : weight;
}

// The product B A of [rows, rank] and [rank, columns].
struct Product {
  std::vector<float> a, b;
  int64_t rank, columns;
  double scale;

  // to += scale times these elements, of which to holds the window.
  void add(const checkpoint::Elements& e, Range window, float* to) const {
    for (int64_t i = window.begin, n = 0; i < window.end; i += n, to += n) {
      const int64_t at = e.range.begin + (e.stride ? i / e.run * e.stride + i % e.run : i);
      const int64_t row = at / columns, column = at % columns;
      n = std::min(columns - column, window.end - i);
      if (e.stride) n = std::min(n, e.run - i % e.run);
      for (int64_t k = 0; k < rank; ++k) {
        const auto factor = float(scale * b[size_t(row * rank + k)]);
        const float* from = a.data() + k * columns + column;
        for (int64_t j = 0; j < n; ++j) to[j] += factor * from[j];
      }
    }
  }
};

}  // namespace

json facts_of(const config::LoraConfig& lora) {
  if (lora.targets.empty()) return nullptr;
  return {
      {"targets", lora.targets}, {"rank", lora.rank}, {"alpha", lora.alpha}, {"use_rslora", lora.use_rslora}};
}

config::LoraConfig lora_in(const json& facts) {
  const json lora = facts.value("lora", json());
  if (lora.is_null()) return {};
  return {lora.at("targets"), lora.at("rank"), lora.at("alpha"), lora.at("use_rslora")};
}

std::vector<std::string> dropped_adapters(const std::vector<std::string>& weights,
                                          const config::LoraConfig& lora, const std::string& prefix) {
  const AdapterRule rule(lora.targets, {}, prefix);
  std::vector<std::string> dropped;
  for (const std::string& weight : weights)
    if (weight.ends_with(kA))
      if (std::string linear = weight.substr(0, weight.size() - std::string_view(kA).size());
          !rule.applies_to(linear))
        dropped.push_back(std::move(linear));
  return dropped;
}

std::vector<float> MergedWeights::whole(const std::string& tensor) const {
  const std::vector<int64_t> shape = reader_.shape("master", tensor);
  std::vector<float> values(size_t(checkpoint::numel_of(shape)));
  reader_.read({"master", tensor, shape, {{0, int64_t(values.size())}}, {}, [&](Range at, Tensor from) {
                  std::copy_n(from.as<float>(), from.numel(), values.data() + at.begin);
                }});
  return values;
}

void MergedWeights::read(const checkpoint::Record& record) const {
  const std::string stem = stem_of(record.tensor);
  const std::vector<int64_t> a = reader_.shape("master", stem + kA);
  if (a.empty()) return reader_.read(record);
  const Product product{whole(stem + kA), whole(stem + kB), a[0], a[1], scale_};
  checkpoint::Record merged = record;
  std::vector<float> values;
  merged.write = [&](Range window, Tensor from) {
    values.assign(from.as<float>(), from.as<float>() + from.numel());
    product.add(record.elements, window, values.data());
    record.write(window, Tensor(values.data(), DType::fp32, {from.numel()}, MemoryKind::host));
  };
  reader_.read(merged);
}

checkpoint::WeightNames adapter_names(const checkpoint::CheckpointReader& reader,
                                      const checkpoint::WeightNames& weights) {
  checkpoint::WeightNames names;
  for (const checkpoint::WeightName& w : weights.tensors)
    for (const char* end : {kA, kB}) {
      const std::string tensor = stem_of(w.tensor) + end;
      const std::vector<int64_t> shape = reader.shape("master", tensor);
      if (!shape.empty())
        names.tensors.push_back({tensor, shape, "base_model.model." + stem_of(w.file_name) + end});
    }
  require(!names.tensors.empty(), Exit::checkpoint, "{} has no adapters: it was trained without cleave.lora",
          reader.path().string());
  return names;
}

json adapter_config(const config::LoraConfig& lora, const model::ModelConfig& model,
                    const std::string& base) {
  const bool all =
      std::find(lora.targets.begin(), lora.targets.end(), AdapterRule::kAllLinear) != lora.targets.end();
  return {{"peft_type", "LORA"},
          {"task_type", "CAUSAL_LM"},
          {"base_model_name_or_path", path_in_json(base)},
          {"r", lora.rank},
          {"lora_alpha", lora.alpha},
          {"use_rslora", lora.use_rslora},
          {"target_modules", all ? json(AdapterRule::kAllLinear) : json(lora.targets)},
          {"lora_dropout", 0.0},
          {"bias", "none"},
          {"fan_in_fan_out", model.family->input_first},
          {"inference_mode", true}};
}

}  // namespace cleave::app
