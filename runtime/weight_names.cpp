#include "runtime/weight_names.h"

#include <algorithm>

#include "model/family.h"

namespace cleave::runtime {
namespace {

checkpoint::WeightNames names_of(const model::ModelConfig& config, bool with_base) {
  const model::Family& family = *config.family;
  const std::string base = std::string(family.base) + ".", head = std::string(family.names.head) + ".",
                    block = std::string(family.names.block) + ".";
  const auto in_files = [&](const std::string& tensor) {
    const std::string stem = tensor.starts_with(base) ? tensor.substr(base.size()) : tensor;
    return with_base && !tensor.starts_with(head) ? base + stem : stem;
  };
  checkpoint::WeightNames names;
  const model::Model whole = model::make_model(config, DType::fp32, 1, family.type);
  for (const UnitSpec& unit : whole.units())
    for (const ParamSpec& p : unit.params) {
      const bool transposed = family.input_first && p.shape.size() == 2 && p.name.starts_with(block);
      names.tensors.push_back({p.name, p.whole_shape(), in_files(p.name), transposed});
    }
  if (config.tied) names.tied.emplace_back(head + "weight", std::string(family.names.embedding) + ".weight");
  names.buffers = {".attn.bias", ".attn.masked_bias", "rotary_emb.inv_freq"};
  return names;
}

}  // namespace

checkpoint::WeightNames weight_names(const model::ModelConfig& config, const checkpoint::WeightFiles& files) {
  return weight_names(config, files.names());
}

checkpoint::WeightNames weight_names(const model::ModelConfig& config,
                                     const std::vector<std::string>& in_files) {
  const std::string base = std::string(config.family->base) + ".";
  return names_of(config, std::any_of(in_files.begin(), in_files.end(),
                                      [&](const std::string& name) { return name.starts_with(base); }));
}

checkpoint::WeightNames weight_names(const model::ModelConfig& config) { return names_of(config, true); }

}  // namespace cleave::runtime
