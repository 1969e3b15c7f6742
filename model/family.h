// Families of transformers as values: structure of blocks, parameter names, and conversion of config.json. A
// family is one file in model/families/ and its name below.
#pragma once
#include <array>

#include "model/norm.h"
#include "model/transformer.h"

namespace cleave::model {

class Fields;  // model/config_fields.h

struct Family {
  const char* type;  // model_type in config.json
  // Checkpoint names of parameters, without .weight and .bias; names in blocks follow the block's name and
  // number. Arrays of two or three names may hold one joint name instead.
  struct Names {
    const char *embedding, *positions = nullptr;  // null: rotary positions
    const char *block, *attention_norm;           // before attention; null with mlp_norm: no norms
    std::array<const char*, 3> qkv;
    const char *out, *query_norm = nullptr, *key_norm = nullptr;  // null: no norms of heads
    const char* attention_after = nullptr;  // after attention; null with mlp_after: none
    const char* mlp_norm;
    std::array<const char*, 2> up;
    const char *down, *mlp_after = nullptr, *final_norm, *head = "lm_head";
  } names;

  // Prefix, with a dot, of all names but the head's in files; files of the model without its head omit it.
  const char* base = "model";
  const char* architecture;  // class name in transformers
  // Block matrices are [in, out] in files and [out, in] here.
  bool input_first = false;

  Norm::Kind norm = Norm::Kind::rms;
  float norm_eps = 1e-6f;                                        // default if the config has none
  float norm_offset = 0;                                         // added to norm weights
  bool gated = true;                                             // gated MLP
  kernels::Activation activation = kernels::Activation::silu;    // default if the config has none
  bool scaled_embedding = false;                                 // scaled by the root of the width
  bool qkv_bias = false, output_bias = false, mlp_bias = false;  // always present, independent of the config
  bool tied = false;                                             // always tied
  // Initial weights of layers that write to the residual stream are divided by the root of the number of
  // writes.
  bool small_outputs = false;
  bool biases_last = false;  // order within a unit (Block)

  // Converts the text of config.json. read() collects errors of the fields.
  ModelConfig (*read)(const Fields& fields);
  std::string (*write)(const ModelConfig& config);
};

extern const Family kGpt2, kLlama, kQwen2, kQwen3, kMistral, kPhi3, kGemma2, kGemma3;
inline constexpr std::array kFamilies{&kGpt2,    &kLlama, &kQwen2,  &kQwen3,
                                      &kMistral, &kPhi3,  &kGemma2, &kGemma3};

// Fills defaults of a config of the family for values of 0: kv_heads = heads, head_dim = width / heads, an
// MLP four times as wide, the family's epsilon.
ModelConfig model_config(const Family& family, ModelConfig sizes);

// Calls make_model() with such a config; an empty name means the family's.
Model make_model(const Family& family, const ModelConfig& sizes, DType dtype, int64_t seq,
                 std::string name = {}, const Axes& axes = {});

}  // namespace cleave::model
