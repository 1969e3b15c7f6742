#include "app/adapters.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "checkpoint/manifest.h"
#include "config_schema/adapter_rule.h"
#include "core/json_path.h"
#include "core/printable.h"
#include "model/family.h"
#include "runtime/step/training_state.h"

namespace cleave::app {
namespace {

using nlohmann::json;

constexpr std::string_view kWeight = ".weight";
constexpr const char *kA = ".lora_A.weight", *kB = ".lora_B.weight";
constexpr int64_t kLargestRank = 1 << 16;

// Returns the LoRA configuration of the checkpoint's training.
config::LoraConfig saved_lora(const checkpoint::CheckpointReader& reader) {
  const std::string where = reader.path().string();
  try {
    const config::LoraConfig lora = lora_in(json::parse(runtime::from_json(reader.state(), where).client));
    if (!lora.targets.empty()) return lora;
  } catch (const json::exception&) {
  }
  fail(Exit::checkpoint,
       "{}: the rank of its adapters (lora.rank) is missing; use another copy of the checkpoint", where);
}

std::string stem_of(const std::string& weight) {
  return weight.ends_with(kWeight) ? weight.substr(0, weight.size() - kWeight.size()) : weight;
}

using Tensors = std::map<checkpoint::Manifest::Name, checkpoint::Manifest::Whole>;

// Requires a matrix of an adapter to have the shape given by its weight and its rank.
void require_shape(const checkpoint::CheckpointReader& reader, const std::string& tensor,
                   const std::vector<int64_t>& wanted) {
  const std::vector<int64_t> shape = reader.shape("master", tensor);
  require(shape == wanted, Exit::checkpoint,
          "{}: {} has the wrong shape (got [{}], expected [{}]); use another copy of the checkpoint",
          reader.path().string(), in_quotes(tensor), fmt::join(shape, ", "), fmt::join(wanted, ", "));
}

// Requires every adapter of a checkpoint to be a pair of matrices [rank, in] and [out, rank] for a
// weight [out, in], with the rank in the manifest, and all of them to be in its files. Only then
// are the manifest's sizes used for memory.
void require_adapters(const checkpoint::CheckpointReader& reader) {
  const Tensors& tensors = reader.manifest().tensors;
  std::set<std::string> stems;
  for (const auto& [name, whole] : tensors)
    for (const std::string_view end : {kA, kB})
      if (name.first == "master" && name.second.ends_with(end))
        stems.insert(name.second.substr(0, name.second.size() - end.size()));
  if (stems.empty()) return;
  const int64_t rank = saved_lora(reader).rank;
  for (const std::string& stem : stems) {
    auto weight = tensors.find({"master", stem + std::string(kWeight)});
    if (weight == tensors.end()) weight = tensors.find({"master", stem});
    require(weight != tensors.end() && weight->second.shape.size() == 2, Exit::checkpoint,
            "{}: the adapter {} has no matching linear layer; use another copy of the checkpoint",
            reader.path().string(), in_quotes(stem));
    require_shape(reader, stem + kA, {rank, weight->second.shape[1]});
    require_shape(reader, stem + kB, {weight->second.shape[0], rank});
  }
  reader.check_files();
}

// The product B A of [rows, rank] and [rank, columns].
struct Product {
  std::vector<float> a, b;
  int64_t rank, columns;
  double scale;

  // to += scale * these elements; `to` holds the window.
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
  const json& rank = lora.at("rank");
  require(
      rank.is_number_integer() && 1 <= rank && rank <= kLargestRank, Exit::checkpoint,
      "lora.rank of the checkpoint is wrong (got {}, expected 1 to {}); use another copy of the checkpoint",
      in_quotes(rank.dump()), kLargestRank);
  config::LoraConfig found{lora.at("targets"), rank, lora.at("alpha"), lora.at("use_rslora")};
  require(
      found.alpha > 0 && std::isfinite(float(found.scale())), Exit::checkpoint,
      "lora.alpha of the checkpoint is wrong (got {}, expected a number above 0); use another copy of the "
      "checkpoint",
      found.alpha);
  return found;
}

std::vector<std::string> dropped_adapters(const std::vector<std::string>& weights,
                                          const config::LoraConfig& lora, const std::string& prefix) {
  const config::AdapterRule rule(lora.targets, {}, prefix);
  std::vector<std::string> dropped;
  for (const std::string& weight : weights)
    if (weight.ends_with(kA))
      if (std::string linear = weight.substr(0, weight.size() - std::string_view(kA).size());
          !rule.applies_to(linear))
        dropped.push_back(std::move(linear));
  return dropped;
}

MergedWeights::MergedWeights(const checkpoint::CheckpointReader& reader, double scale)
    : reader_(reader), scale_(scale) {
  require_adapters(reader);
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
  require_adapters(reader);
  checkpoint::WeightNames names;
  for (const checkpoint::WeightName& w : weights.tensors)
    for (const char* end : {kA, kB}) {
      const std::string tensor = stem_of(w.tensor) + end;
      const std::vector<int64_t> shape = reader.shape("master", tensor);
      if (!shape.empty())
        names.tensors.push_back({tensor, shape, "base_model.model." + stem_of(w.file_name) + end});
    }
  require(!names.tensors.empty(), Exit::checkpoint, "{}: has no adapters; it was trained without cleave.lora",
          reader.path().string());
  return names;
}

json adapter_config(const config::LoraConfig& lora, const model::ModelConfig& model,
                    const std::string& base) {
  const bool all = std::find(lora.targets.begin(), lora.targets.end(), config::AdapterRule::kAllLinear) !=
                   lora.targets.end();
  return {{"peft_type", "LORA"},
          {"task_type", "CAUSAL_LM"},
          {"base_model_name_or_path", path_in_json(base)},
          {"r", lora.rank},
          {"lora_alpha", lora.alpha},
          {"use_rslora", lora.use_rslora},
          {"target_modules", all ? json(config::AdapterRule::kAllLinear) : json(lora.targets)},
          {"lora_dropout", 0.0},
          {"bias", "none"},
          {"fan_in_fan_out", model.family->input_first},
          {"inference_mode", true}};
}

}  // namespace cleave::app
