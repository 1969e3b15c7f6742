#include "model/family.h"

namespace cleave::model {

ModelConfig model_config(const Family& family, ModelConfig c) {
  c.family = &family;
  if (c.kv_heads == 0) c.kv_heads = c.heads;
  if (c.head_dim == 0 && c.heads > 0 && c.width % c.heads == 0) c.head_dim = c.width / c.heads;
  if (c.mlp_width == 0) c.mlp_width = 4 * c.width;
  if (c.norm_eps == 0) c.norm_eps = family.norm_eps;
  if (!c.activation) c.activation = family.activation;
  c.qkv_bias |= family.qkv_bias, c.output_bias |= family.output_bias, c.tied |= family.tied;
  return c;
}

Model make_model(const Family& family, const ModelConfig& sizes, DType dtype, int64_t seq, std::string name,
                 const Axes& axes) {
  return make_model(model_config(family, sizes), dtype, seq, name.empty() ? family.type : std::move(name),
                    axes);
}

}  // namespace cleave::model
