// Mistral (arXiv 2310.06825): Llama with an optional attention window.
#include "model/families/rotary_decoder.h"

namespace cleave::model {
namespace {

ModelConfig read_mistral(const Fields& f) {
  ModelConfig c = read_rotary_decoder(kMistral, f, 131072);
  if (!f.says("num_key_value_heads")) c.kv_heads = 8;
  c.window = f.count("sliding_window", kMostIds, f.says("sliding_window") ? 0 : 4096);
  return c;
}

std::string write_mistral(const ModelConfig& c) {
  nlohmann::json j = rotary_decoder_json(c);
  j["sliding_window"] = c.window > 0 ? nlohmann::json(c.window) : nlohmann::json();
  return text_of(j);
}

}  // namespace

constinit const Family kMistral{.type = "mistral",
                                .names = kRotaryDecoderNames,
                                .architecture = "MistralForCausalLM",
                                .read = read_mistral,
                                .write = write_mistral};

}  // namespace cleave::model
