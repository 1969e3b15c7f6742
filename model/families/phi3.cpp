// Phi-3 (arXiv 2404.14219): Mistral with one matrix for queries, keys and values and one for gate and up.
#include "model/families/rotary_decoder.h"

namespace cleave::model {
namespace {

ModelConfig read_phi3(const Fields& f) {
  ModelConfig c = read_rotary_decoder(kPhi3, f, 4096);
  c.window = f.count("sliding_window", kMostIds, 0);
  f.only("resid_pdrop", 0.0, 0.0);
  f.only("embd_pdrop", 0.0, 0.0);
  f.only("attention_bias", false, false);
  return c;
}

std::string write_phi3(const ModelConfig& c) {
  nlohmann::json j = rotary_decoder_json(c);
  j["sliding_window"] = c.window > 0 ? nlohmann::json(c.window) : nlohmann::json();
  return text_of(j);
}

constexpr Family::Names kPhi3Names = [] {
  Family::Names names = kRotaryDecoderNames;
  names.qkv = {"self_attn.qkv_proj"}, names.up = {"mlp.gate_up_proj"};
  return names;
}();

}  // namespace

constinit const Family kPhi3{.type = "phi3",
                             .names = kPhi3Names,
                             .architecture = "Phi3ForCausalLM",
                             .norm_eps = 1e-5f,
                             .read = read_phi3,
                             .write = write_phi3};

}  // namespace cleave::model
