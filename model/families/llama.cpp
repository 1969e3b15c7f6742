// The Llama family (arXiv 2302.13971, 2407.21783): RMS norm before attention and MLP, rotary positions,
// grouped key/value heads, SwiGLU.
#include "model/families/rotary_decoder.h"

namespace cleave::model {
namespace {

ModelConfig read_llama(const Fields& f) {
  ModelConfig c = read_rotary_decoder(kLlama, f, 2048);
  c.qkv_bias = c.output_bias = f.flag("attention_bias", false);
  f.absent("sliding_window", "a sliding window");
  return c;
}

std::string write_llama(const ModelConfig& c) {
  CHECK(c.qkv_bias == c.output_bias,
        "a config.json cannot express biases in some attention projections only");
  nlohmann::json j = rotary_decoder_json(c);
  j["attention_bias"] = c.qkv_bias;
  return text_of(j);
}

}  // namespace

constinit const Family kLlama{.type = "llama",
                              .names = kRotaryDecoderNames,
                              .architecture = "LlamaForCausalLM",
                              .biases_last = true,
                              .read = read_llama,
                              .write = write_llama};

}  // namespace cleave::model
