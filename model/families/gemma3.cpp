// Text models of Gemma 3 (arXiv 2503.19786): Gemma 2 without the cap of scores, with normalized queries and
// keys, five windowed layers for each full one, and a separate rotation for windowed layers.
#include "model/families/gemma.h"

namespace cleave::model {
namespace {

// transformers 5 writes an object for each kind of layer; transformers 4 writes rope_local_base_freq at the
// top level.
void read_rotations(const Fields& f, ModelConfig& c) {
  const Fields both = f.inner("rope_parameters"), local = both.inner("sliding_attention");
  read_rope(f, f.has("rope_parameters") ? both.inner("full_attention") : f.inner("rope_scaling"), 1e6, c);
  c.local_rope_theta = local.number("rope_theta", f.number("rope_local_base_freq", 10000));
  if (c.local_rope_theta <= 1) f.refuse("rope_local_base_freq", "must be above 1");
  local.only("rope_type", "default", "default");
}

ModelConfig read_gemma3(const Fields& f) {
  ModelConfig c = read_gemma(kGemma3, f, 131072, f.count("sliding_window_pattern", kMostLayers, 6));
  read_rotations(f, c);
  f.absent("attn_logit_softcapping", "a soft cap of scores, which transformers leaves out of Gemma 3,");
  c.logit_cap = float(f.number("final_logit_softcapping", 0));
  return c;
}

std::string write_gemma3(const ModelConfig& c) {
  nlohmann::json j = gemma_json(c);
  j["rope_local_base_freq"] = c.local_rope_theta;
  return text_of(j);
}

constexpr Family::Names kGemma3Names = [] {
  Family::Names names = kGemmaNames;
  names.query_norm = "self_attn.q_norm", names.key_norm = "self_attn.k_norm";
  return names;
}();

}  // namespace

constinit const Family kGemma3{.type = "gemma3_text",
                               .names = kGemma3Names,
                               .architecture = "Gemma3ForCausalLM",
                               .norm_offset = 1,
                               .activation = kernels::Activation::gelu_tanh,
                               .scaled_embedding = true,
                               .read = read_gemma3,
                               .write = write_gemma3};

}  // namespace cleave::model
