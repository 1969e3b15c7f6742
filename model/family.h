// Families of transformers as values: what their blocks are made of, what their parameters are called, and
// how Hugging Face's config.json says their sizes. A family is one file in model/families/ and its name
// below.
#pragma once
#include <array>

#include "model/norm.h"
#include "model/transformer.h"

namespace cleave::model {

class Fields;  // model/config_fields.h

struct Family {
  const char* type;  // model_type in config.json
  // Names of parameters as checkpoints have them, without .weight and .bias; those of blocks follow the
  // block's name and number. Where three names or two stand together, a family may have one for all of them.
  struct Names {
    const char *embedding, *positions = nullptr;  // null: positions are rotated
    const char *block, *attention_norm;           // before attention; null with mlp_norm: there are none
    std::array<const char*, 3> qkv;
    const char *out, *query_norm = nullptr, *key_norm = nullptr;  // null: heads are not normalized
    const char* attention_after = nullptr;  // behind it; null with mlp_after: there are none
    const char* mlp_norm;
    std::array<const char*, 2> up;
    const char *down, *mlp_after = nullptr, *final_norm, *head = "lm_head";
  } names;

  // In files, names but the head's begin with this and a dot; those of the model without its head leave it
  // out.
  const char* base = "model";
  const char* architecture;  // transformers' class
  // Matrices of blocks lie [in, out] in files; here they are [out, in].
  bool input_first = false;

  Norm::Kind norm = Norm::Kind::rms;
  float norm_eps = 1e-6f;                                        // of a config that says none
  float norm_offset = 0;                                         // added to the weights of norms
  bool gated = true;                                             // the MLP
  kernels::Activation activation = kernels::Activation::silu;    // of a config that says none
  bool scaled_embedding = false;                                 // by the root of the width
  bool qkv_bias = false, output_bias = false, mlp_bias = false;  // always, whatever a config says
  bool tied = false;                                             // always
  // What writes to the residual stream starts smaller by the square root of how often it is written to.
  bool small_outputs = false;
  bool biases_last = false;  // in the order of a unit (Block)

  // These read and write the text of config.json. read() collects what is wrong in the fields.
  ModelConfig (*read)(const Fields& fields);
  std::string (*write)(const ModelConfig& config);
};

extern const Family kGpt2, kLlama, kQwen2, kQwen3, kMistral, kPhi3, kGemma2, kGemma3;
inline constexpr std::array kFamilies{&kGpt2,    &kLlama, &kQwen2,  &kQwen3,
                                      &kMistral, &kPhi3,  &kGemma2, &kGemma3};

// A config of the family, with what it leaves 0 filled in: as many key/value heads as heads, heads that
// divide the width, an MLP four times as wide, the family's epsilon.
ModelConfig model_config(const Family& family, ModelConfig sizes);

// make_model() of such a config; a model without a name is called as its family.
Model make_model(const Family& family, const ModelConfig& sizes, DType dtype, int64_t seq,
                 std::string name = {}, const Axes& axes = {});

}  // namespace cleave::model
