// Gemma 2 (arXiv 2408.00118): norms before and after attention and MLP with weights added to 1, GEGLU, a
// scaled embedding, soft caps of scores and logits, and a window in every other layer.
#include "model/families/gemma.h"

namespace cleave::model {
namespace {

ModelConfig read_gemma2(const Fields& f) {
  ModelConfig c = read_gemma(kGemma2, f, 8192, 2);
  read_rope(f, f.inner(f.has("rope_parameters") ? "rope_parameters" : "rope_scaling"), 10000, c);
  c.attention_cap = float(f.number("attn_logit_softcapping", f.says("attn_logit_softcapping") ? 0 : 50));
  c.logit_cap = float(f.number("final_logit_softcapping", f.says("final_logit_softcapping") ? 0 : 30));
  return c;
}

std::string write_gemma2(const ModelConfig& c) { return text_of(gemma_json(c)); }

}  // namespace

constinit const Family kGemma2{.type = "gemma2",
                               .names = kGemmaNames,
                               .architecture = "Gemma2ForCausalLM",
                               .norm_offset = 1,
                               .activation = kernels::Activation::gelu_tanh,
                               .scaled_embedding = true,
                               .read = read_gemma2,
                               .write = write_gemma2};

}  // namespace cleave::model
