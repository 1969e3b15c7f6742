// Qwen2 (arXiv 2407.10671): Llama with biases on queries, keys and values.
#include "model/families/rotary_decoder.h"

namespace cleave::model {
namespace {

ModelConfig read_qwen2(const Fields& f) {
  ModelConfig c = read_rotary_decoder(kQwen2, f, 32768);
  f.flag("attention_bias", false);
  f.only("use_sliding_window", false, false);
  f.only_words("layer_types", "full_attention");
  return c;
}

}  // namespace

constinit const Family kQwen2{.type = "qwen2",
                              .names = kRotaryDecoderNames,
                              .architecture = "Qwen2ForCausalLM",
                              .qkv_bias = true,
                              .biases_last = true,
                              .read = read_qwen2,
                              .write = rotary_decoder_text};

}  // namespace cleave::model
