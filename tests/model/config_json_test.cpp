#include "model/config_json.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "model/family.h"
#include "model/presets.h"

namespace cleave::model {
namespace {

using nlohmann::json;

// Published with Llama 3.1 8B (transformers 4).
const json kLlamaFile = json::parse(R"({
  "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "bos_token_id": 128000, "eos_token_id": 128001, "hidden_act": "silu", "hidden_size": 4096,
  "initializer_range": 0.02, "intermediate_size": 14336, "max_position_embeddings": 131072, "mlp_bias":
  false, "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads":
  8, "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0,
  "high_freq_factor": 4.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"}, "rope_theta":
  500000.0, "tie_word_embeddings": false, "torch_dtype": "bfloat16", "use_cache": true, "vocab_size":
  128256})");
// Published with Qwen2.5 0.5B.
const json kQwen2File = json::parse(R"({
  "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "hidden_act": "silu", "hidden_size":
  896, "initializer_range": 0.02, "intermediate_size": 4864, "max_position_embeddings": 32768,
  "max_window_layers": 24, "model_type": "qwen2", "num_attention_heads": 14, "num_hidden_layers": 24,
  "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "sliding_window": 32768,
  "tie_word_embeddings": true, "torch_dtype": "bfloat16", "use_cache": true, "use_mrope": false,
  "use_sliding_window": false, "vocab_size": 151936})");
// Published with Qwen3 0.6B.
const json kQwen3File = json::parse(R"({
  "architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id":
  151643, "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 1024,
  "initializer_range": 0.02, "intermediate_size": 3072, "max_position_embeddings": 40960,
  "max_window_layers": 28, "model_type": "qwen3", "num_attention_heads": 16, "num_hidden_layers": 28,
  "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 1000000,
  "sliding_window": null, "tie_word_embeddings": true, "torch_dtype": "bfloat16", "use_cache": true,
  "use_sliding_window": false, "vocab_size": 151936})");
// Published with Mistral 7B v0.3.
const json kMistral7b = json::parse(R"({
  "architectures": ["MistralForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2,
  "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336,
  "max_position_embeddings": 32768, "model_type": "mistral", "num_attention_heads": 32,
  "num_hidden_layers": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 1000000.0,
  "sliding_window": null, "tie_word_embeddings": false, "torch_dtype": "bfloat16", "use_cache": true,
  "vocab_size": 32768})");
// Published with Phi-3 mini 4k.
const json kPhi3Mini = json::parse(R"({
  "architectures": ["Phi3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 1,
  "embd_pdrop": 0.0, "eos_token_id": 32000, "hidden_act": "silu", "hidden_size": 3072,
  "initializer_range": 0.02, "intermediate_size": 8192, "max_position_embeddings": 4096, "model_type":
  "phi3", "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32,
  "original_max_position_embeddings": 4096, "pad_token_id": 32000, "resid_pdrop": 0.0, "rms_norm_eps":
  1e-05, "rope_scaling": null, "rope_theta": 10000.0, "sliding_window": 2047, "tie_word_embeddings": false,
  "torch_dtype": "bfloat16", "use_cache": true, "vocab_size": 32064})");
// Published with Gemma 2 2B.
const json kGemma2File = json::parse(R"({
  "architectures": ["Gemma2ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "attn_logit_softcapping": 50.0, "bos_token_id": 2, "cache_implementation": "hybrid", "eos_token_id": 1,
  "final_logit_softcapping": 30.0, "head_dim": 256, "hidden_act": "gelu_pytorch_tanh", "hidden_activation":
  "gelu_pytorch_tanh", "hidden_size": 2304, "initializer_range": 0.02, "intermediate_size": 9216,
  "max_position_embeddings": 8192, "model_type": "gemma2", "num_attention_heads": 8, "num_hidden_layers": 26,
  "num_key_value_heads": 4, "pad_token_id": 0, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06,
  "rope_theta": 10000.0, "sliding_window": 4096, "torch_dtype": "float32", "use_cache": true, "vocab_size":
  256000})");
// Published with Gemma 3 1B.
const json kGemma3File = json::parse(R"({
  "architectures": ["Gemma3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "attn_logit_softcapping": null, "bos_token_id": 2, "cache_implementation": "hybrid", "eos_token_id": 1,
  "final_logit_softcapping": null, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "hidden_size":
  1152, "initializer_range": 0.02, "intermediate_size": 6912, "max_position_embeddings": 32768,
  "model_type": "gemma3_text", "num_attention_heads": 4, "num_hidden_layers": 26, "num_key_value_heads": 1,
  "pad_token_id": 0, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06, "rope_local_base_freq": 10000,
  "rope_scaling": null, "rope_theta": 1000000, "sliding_window": 512, "sliding_window_pattern": 6,
  "torch_dtype": "bfloat16", "use_cache": true, "vocab_size": 262144})");
// Published with GPT-2.
const json kGpt2File = json::parse(R"({
  "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1,
  "embd_pdrop": 0.1, "initializer_range": 0.02, "layer_norm_epsilon": 1e-05, "model_type": "gpt2",
  "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024, "resid_pdrop": 0.1,
  "summary_type": "cls_index", "vocab_size": 50257})");

json with(json base, const json& changes) {
  base.update(changes);
  return base;
}
json without(json base, const char* name) {
  base.erase(name);
  return base;
}

std::string refusal(const std::string& text) {
  try {
    read_config_json(text, "some/config.json");
  } catch (const Error& e) {
    EXPECT_EQ(e.exit(), Exit::usage);
    EXPECT_NE(std::string(e.what()).find("some/config.json"), std::string::npos) << e.what();
    return e.what();
  }
  return "";
}

void expect_refused(const json& config, std::initializer_list<const char*> parts) {
  const std::string message = refusal(config.dump());
  for (const char* part : parts)
    EXPECT_NE(message.find(part), std::string::npos) << part << " in: " << message;
}

TEST(ConfigJson, PublishedFilesAreThePresets) {
  EXPECT_EQ(read_config_json(kLlamaFile.dump(), "f"), find_model("llama-3.1-8b"));
  EXPECT_EQ(read_config_json(kQwen2File.dump(), "f"), find_model("qwen2.5-0.5b"));
  EXPECT_EQ(read_config_json(kQwen3File.dump(), "f"), find_model("qwen3-0.6b"));
  EXPECT_EQ(read_config_json(kMistral7b.dump(), "f"), find_model("mistral-7b-v0.3"));
  EXPECT_EQ(read_config_json(kPhi3Mini.dump(), "f"), find_model("phi-3-mini"));
  EXPECT_EQ(read_config_json(kGemma2File.dump(), "f"), find_model("gemma-2-2b"));
  EXPECT_EQ(read_config_json(kGemma3File.dump(), "f"), find_model("gemma-3-1b"));
  ModelConfig gpt2 = find_model("gpt2");
  gpt2.dropout = gpt2.attention_dropout = 0.1f;
  EXPECT_EQ(read_config_json(kGpt2File.dump(), "f"), gpt2);
}

TEST(ConfigJson, RopeParametersOfTransformers5MeanTheSame) {
  json five = without(without(kLlamaFile, "rope_scaling"), "rope_theta");
  five["rope_parameters"] = with(kLlamaFile["rope_scaling"], {{"rope_theta", 500000.0}});
  EXPECT_EQ(read_config_json(five.dump(), "f"), read_config_json(kLlamaFile.dump(), "f"));
}

TEST(ConfigJson, EveryPresetSurvivesWritingAndReading) {
  for (const char* name : {"gpt2", "gpt2-xl", "llama-3.2-1b", "llama-3.1-8b", "qwen2.5-0.5b", "qwen2.5-7b",
                           "qwen3-4b", "mistral-7b-v0.3", "phi-3-mini", "gemma-2-2b", "gemma-3-1b"}) {
    const ModelConfig config = find_model(name);
    EXPECT_EQ(read_config_json(to_config_json(config), name), config) << name;
  }
  ModelConfig odd = find_model("llama-3.1-8b");
  odd.rope = {.kind = RopeScaling::Kind::linear, .factor = 2.5};
  odd.qkv_bias = odd.output_bias = true, odd.attention_dropout = 0.05f;
  odd.init_scale = 0.0123f, odd.norm_eps = 3e-7f;
  EXPECT_EQ(read_config_json(to_config_json(odd), "f"), odd);
  odd.activation = kernels::Activation::gelu_erf;
  EXPECT_EQ(read_config_json(to_config_json(odd), "f"), odd);
  ModelConfig gemma = find_model("gemma-3-1b");
  gemma.query_scalar = 168.5, gemma.logit_cap = 12.5f, gemma.activation = kernels::Activation::silu;
  gemma.rope = {.kind = RopeScaling::Kind::linear, .factor = 8}, gemma.local_rope_theta = 500;
  gemma.layer_kinds[3] = LayerKind::full, gemma.layer_kinds[5] = LayerKind::sliding;
  EXPECT_EQ(read_config_json(to_config_json(gemma), "f"), gemma);
  ModelConfig uncapped = find_model("gemma-2-2b");
  uncapped.attention_cap = uncapped.logit_cap = 0, uncapped.window = 0;
  EXPECT_EQ(read_config_json(to_config_json(uncapped), "f"), uncapped);
}

TEST(ConfigJson, GemmasLayersRotationsAndCapsAreTheFilesOrTransformersDefaults) {
  const auto read = [](const json& config) { return read_config_json(config.dump(), "f"); };
  EXPECT_EQ(read(without(without(kGemma2File, "attn_logit_softcapping"), "final_logit_softcapping")),
            read(kGemma2File));
  EXPECT_EQ(read(without(without(kGemma2File, "head_dim"), "num_key_value_heads")), read(kGemma2File));
  EXPECT_EQ(read(without(kGemma3File, "sliding_window_pattern")), read(kGemma3File));
  json five = without(without(without(kGemma3File, "rope_scaling"), "rope_theta"), "rope_local_base_freq");
  five["rope_parameters"] = {
      {"full_attention", {{"rope_type", "linear"}, {"factor", 8.0}, {"rope_theta", 1e6}}},
      {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 1e4}}}};
  ModelConfig want = read(kGemma3File);
  want.rope = {.kind = RopeScaling::Kind::linear, .factor = 8};
  EXPECT_EQ(read(five), want);
  const json four = with(kGemma3File, {{"rope_scaling", {{"rope_type", "linear"}, {"factor", 8.0}}}});
  EXPECT_EQ(read(four), want);
  std::vector<std::string> types(26, "full_attention");
  types[1] = "sliding_attention";
  const std::vector<LayerKind> kinds = read(with(kGemma2File, {{"layer_types", types}})).layer_kinds;
  EXPECT_EQ(std::count(kinds.begin(), kinds.end(), LayerKind::sliding), 1);
  EXPECT_EQ(kinds[1], LayerKind::sliding);
  expect_refused(with(kGemma2File, {{"layer_types", {"full_attention"}}}),
                 {"layer_types", "1 kinds", "26 layers"});
  types[1] = "chunked_attention";
  expect_refused(with(kGemma2File, {{"layer_types", types}}), {"chunked_attention", "sliding_attention"});
  expect_refused(with(kGemma2File, {{"use_bidirectional_attention", true}}), {"use_bidirectional_attention"});
  expect_refused(with(kGemma3File, {{"attn_logit_softcapping", 50.0}}), {"attn_logit_softcapping"});
  expect_refused(with(kGemma3File, {{"model_type", "gemma3"}}), {"'gemma3'", "nearest is gemma3_text"});
}

TEST(ConfigJson, AbsentFieldsHaveTransformersDefaults) {
  json bare = kLlamaFile;
  for (const char* name :
       {"num_key_value_heads", "rope_scaling", "rope_theta", "rms_norm_eps", "tie_word_embeddings",
        "max_position_embeddings", "attention_bias", "initializer_range", "hidden_act"})
    bare.erase(name);
  const auto c = read_config_json(bare.dump(), "f");
  EXPECT_EQ(c.kv_heads, 32);
  EXPECT_EQ(c.head_dim, 128);
  EXPECT_EQ(c.rope, RopeScaling{});
  EXPECT_EQ(c.rope_theta, 10000);
  EXPECT_EQ(c.norm_eps, 1e-6f);
  EXPECT_EQ(c.positions, 2048);
  EXPECT_FALSE(c.tied);
}

// An absent window means the library's default, and null means none.
TEST(ConfigJson, AWindowOfMistralAndPhi3IsTheFilesOrTheLibrarysDefault) {
  const auto window = [](const json& config) { return read_config_json(config.dump(), "f").window; };
  EXPECT_EQ(window(kMistral7b), 0);
  EXPECT_EQ(window(without(kMistral7b, "sliding_window")), 4096);
  EXPECT_EQ(window(with(kMistral7b, {{"sliding_window", 64}})), 64);
  EXPECT_EQ(window(without(kPhi3Mini, "sliding_window")), 0);
  EXPECT_EQ(read_config_json(without(kMistral7b, "num_key_value_heads").dump(), "f").kv_heads, 8);
  EXPECT_EQ(read_config_json(without(kQwen3File, "head_dim").dump(), "f").head_dim, 128);
}

TEST(ConfigJson, AttentionBiasIsLlamasAndQwen2HasItsOwn) {
  const auto biases = [](const json& config) {
    const auto c = read_config_json(config.dump(), "f");
    return std::pair{c.qkv_bias, c.output_bias};
  };
  EXPECT_EQ(biases(kLlamaFile), (std::pair{false, false}));
  EXPECT_EQ(biases(with(kLlamaFile, {{"attention_bias", true}})), (std::pair{true, true}));
  EXPECT_EQ(biases(with(kQwen2File, {{"attention_bias", true}})), (std::pair{true, false}));
  EXPECT_EQ(biases(with(kQwen3File, {{"attention_bias", true}})), (std::pair{true, true}));
}

TEST(ConfigJson, MissingAndWrongFieldsAreNamedAllAtOnce) {
  expect_refused(with(without(without(kLlamaFile, "hidden_size"), "vocab_size"),
                      {{"num_hidden_layers", "many"}, {"rms_norm_eps", -1}, {"tie_word_embeddings", 3}}),
                 {"hidden_size: missing", "vocab_size: missing", "num_hidden_layers", "\"many\"",
                  "rms_norm_eps", "tie_word_embeddings"});
  expect_refused(without(kGpt2File, "n_layer"), {"n_layer: missing"});
  expect_refused(with(kLlamaFile, {{"num_attention_heads", 0}}), {"num_attention_heads", "from 1 to"});
  expect_refused(with(kLlamaFile, {{"hidden_size", 4095}}), {"4095", "32 heads"});
}

TEST(ConfigJson, UnsupportedFieldsAreRejectedByName) {
  auto rope = [](const json& r) { return with(kLlamaFile, {{"rope_scaling", r}}); };
  expect_refused(rope({{"rope_type", "yarn"}, {"factor", 4.0}}),
                 {"rope_scaling.rope_type", "yarn", "llama3"});
  expect_refused(rope({{"type", "dynamic"}, {"factor", 4.0}}), {"dynamic"});
  expect_refused(rope({{"rope_type", "llama3"}, {"factor", 8.0}}),
                 {"rope_scaling.low_freq_factor: missing", "original_max_position_embeddings: missing"});
  expect_refused(rope({{"rope_type", "linear"}, {"factor", 0.5}}), {"factor", "at least 1"});
  expect_refused(rope("linear"), {"rope_scaling", "object"});
  expect_refused(with(kLlamaFile, {{"hidden_act", "mish"}}), {"hidden_act", "mish", "silu"});
  expect_refused(with(kLlamaFile, {{"mlp_bias", true}}), {"mlp_bias"});
  expect_refused(with(kLlamaFile, {{"attention_dropout", 1.0}}), {"attention_dropout", "from 0 to below 1"});
  expect_refused(with(kLlamaFile, {{"quantization_config", {{"bits", 4}}}}), {"quantization_config"});
  expect_refused(with(kQwen2File, {{"use_sliding_window", true}}), {"use_sliding_window"});
  expect_refused(with(kQwen2File, {{"layer_types", {"full_attention", "sliding_attention"}}}),
                 {"sliding_attention"});
  expect_refused(with(kGpt2File, {{"attn_pdrop", 1.5}}), {"attn_pdrop", "from 0 to below 1"});
  expect_refused(with(kGpt2File, {{"resid_pdrop", -0.1}}), {"resid_pdrop", "not negative"});
  expect_refused(with(kGpt2File, {{"n_inner", 1000}}), {"n_inner", "3072"});
  expect_refused(with(kGpt2File, {{"activation_function", "mish"}}), {"mish", "gelu_new"});
  expect_refused(with(kLlamaFile, {{"model_type", "mixtral"}}),
                 {"mixtral", "gpt2, llama, qwen2, qwen3, mistral, phi3, gemma2 and gemma3_text"});
  expect_refused(with(kLlamaFile, {{"attn_logit_softcapping", 50.0}}),
                 {"attn_logit_softcapping", "soft cap"});
  expect_refused(with(kLlamaFile, {{"sliding_window", 64}}), {"sliding_window"});
  expect_refused(with(kQwen3File, {{"use_sliding_window", true}}), {"use_sliding_window"});
  expect_refused(with(kMistral7b, {{"sliding_window", -1}}), {"sliding_window", "from 1 to"});
  expect_refused(with(kPhi3Mini, {{"resid_pdrop", 0.1}}), {"resid_pdrop"});
  expect_refused(with(kPhi3Mini, {{"rope_scaling", {{"type", "longrope"}}}}), {"rope_type", "longrope"});
  expect_refused(with(kPhi3Mini, {{"partial_rotary_factor", 0.75}}), {"partial_rotary_factor"});
  expect_refused(without(kLlamaFile, "model_type"), {"model_type"});
}

TEST(ConfigJson, TextThatIsNoObjectIsRefused) {
  EXPECT_NE(refusal("[1, 2]").find("not a JSON object"), std::string::npos);
  for (const char* text : {"", "{\"model_type\": \"llama\"", "model"})
    EXPECT_NE(refusal(text).find("expected the config.json of a model"), std::string::npos) << text;
  EXPECT_NE(
      refusal("{\"model_type\": \"llama\",\n \"model_type\": \"gpt2\"}").find(":2:2: duplicate key 'model_type'"),
      std::string::npos);
}

}  // namespace
}  // namespace cleave::model
