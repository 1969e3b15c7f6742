#include "model/presets.h"

#include <gtest/gtest.h>

#include <cmath>

#include "model/config_json.h"
#include "model/family.h"
#include "model/recipe.h"
#include "tests/scratch.h"

namespace cleave::model {
namespace {

int64_t params_of(const char* name) {
  ModelConfig config = find_model(name);
  if (config.vocab == 0) config.vocab = 256;
  return make_model(config, DType::bf16, 64, name).params();
}

// Published totals; except for GPT-2, transformers counts the same number for the same config.json.
TEST(Presets, HaveThePublishedNumbersOfParameters) {
  const std::pair<const char*, int64_t> published[] = {
      {"gpt2", 124'439'808},         {"gpt2-medium", 354'823'168},       {"gpt2-large", 774'030'080},
      {"gpt2-xl", 1'557'611'200},    {"llama-3.2-1b", 1'235'814'400},    {"llama-3.1-8b", 8'030'261'248},
      {"qwen2.5-0.5b", 494'032'768}, {"qwen2.5-1.5b", 1'543'714'304},    {"qwen2.5-3b", 3'085'938'688},
      {"qwen2.5-7b", 7'615'616'512}, {"qwen3-0.6b", 596'049'920},        {"qwen3-1.7b", 1'720'574'976},
      {"qwen3-4b", 4'022'468'096},   {"mistral-7b-v0.3", 7'248'023'552}, {"phi-3-mini", 3'821'079'552},
      {"gemma-2-2b", 2'614'341'888}, {"gemma-3-1b", 999'885'952}};
  for (const auto& [name, params] : published) EXPECT_EQ(params_of(name), params) << name;
}

// embedding + layers * (attention + MLP + two norms [+ biases]) + norm [+ head]
TEST(Presets, CountAsTheClosedFormSays) {
  const int64_t v = 256, w = 128, q = 4 * 32, kv = 2 * 32, mlp = 384;
  const int64_t block = w * (2 * q + 2 * kv) + 3 * w * mlp + 2 * w;
  EXPECT_EQ(params_of("llama-tiny"), 2 * v * w + 4 * block + w);
  EXPECT_EQ(params_of("qwen2-tiny"), v * w + 4 * (block + q + 2 * kv) + w);
  EXPECT_EQ(params_of("qwen3-tiny"), v * w + 4 * (block + 2 * 32) + w);
  EXPECT_EQ(params_of("mistral-tiny"), params_of("llama-tiny"));
  EXPECT_EQ(params_of("phi-3-tiny"), params_of("llama-tiny"));
  EXPECT_EQ(params_of("gemma-2-tiny"), v * w + 4 * (block + 2 * w) + w);
  EXPECT_EQ(params_of("gemma-3-tiny"), v * w + 4 * (block + 2 * w + 2 * 32) + w);
}

// As in the GPT-2 report: 0.02, divided by the root of the number of residual branches for layers before a
// sum.
TEST(Presets, WeightsOfGpt2StartWithThePublishedSpread) {
  const int64_t layers = 12;
  const Model m = make_model(find_model("gpt2"), DType::fp32, 16, "m");
  int64_t matrices = 0, sums = 0;
  for (const UnitSpec& unit : m.units())
    for (const ParamSpec& p : unit.params) {
      if (p.shape.size() < 2) continue;
      const bool into_sum = p.name.ends_with("c_proj.weight");
      EXPECT_EQ(p.init.kind, Init::Kind::normal) << p.name;
      EXPECT_FLOAT_EQ(p.init.scale, float(into_sum ? 0.02 / std::sqrt(2.0 * layers) : 0.02)) << p.name;
      ++matrices, sums += into_sum;
    }
  EXPECT_EQ(matrices, 4 * layers + 2);
  EXPECT_EQ(sums, 2 * layers);
}

// Parameter names of the second block, without their common prefix.
std::vector<std::string> block_of(const char* preset) {
  ModelConfig config = find_model(preset);
  config.vocab = 256;
  const Model m = make_model(config, DType::fp32, 16, "m");
  const UnitSpec unit = m.layers[2]->units()[0];
  std::vector<std::string> out;
  for (const ParamSpec& p : unit.params) {
    EXPECT_TRUE(p.name.starts_with("model.layers.1.")) << p.name;
    out.push_back(fmt::format("{} {}{}", p.name.substr(15), p.shape[0],
                              p.shape.size() > 1 ? fmt::format("x{}", p.shape[1]) : ""));
  }
  return out;
}

TEST(Presets, ParametersHaveHuggingFaceNamesAndShapes) {
  using Names = std::vector<std::string>;
  const Names mlp = {"post_attention_layernorm.weight 128", "mlp.gate_proj.weight 384x128",
                     "mlp.up_proj.weight 384x128", "mlp.down_proj.weight 128x384"};
  const auto with = [&](Names front, const Names& back, const Names& middle) {
    front.insert(front.end(), middle.begin(), middle.end());
    front.insert(front.end(), back.begin(), back.end());
    return front;
  };
  const Names llama = {"input_layernorm.weight 128", "self_attn.q_proj.weight 128x128",
                       "self_attn.k_proj.weight 64x128", "self_attn.v_proj.weight 64x128",
                       "self_attn.o_proj.weight 128x128"};
  EXPECT_EQ(block_of("llama-tiny"), with(llama, {}, mlp));
  EXPECT_EQ(block_of("mistral-tiny"), block_of("llama-tiny"));
  EXPECT_EQ(block_of("qwen2-tiny"),
            with(llama, {"self_attn.q_proj.bias 128", "self_attn.k_proj.bias 64", "self_attn.v_proj.bias 64"},
                 mlp));
  EXPECT_EQ(block_of("qwen3-tiny"),
            with(with(llama, {}, {"self_attn.q_norm.weight 32", "self_attn.k_norm.weight 32"}), {}, mlp));
  EXPECT_EQ(block_of("phi-3-tiny"),
            (Names{"input_layernorm.weight 128", "self_attn.qkv_proj.weight 256x128",
                   "self_attn.o_proj.weight 128x128", "post_attention_layernorm.weight 128",
                   "mlp.gate_up_proj.weight 768x128", "mlp.down_proj.weight 128x384"}));
  const auto head = [](const char* preset) {
    return make_model(find_model(preset), DType::bf16, 8, "m").head->units()[0].params[0].name;
  };
  EXPECT_EQ(head("qwen3-0.6b"), "model.embed_tokens.weight");
  EXPECT_EQ(head("llama-3.1-8b"), "lm_head.weight");
  EXPECT_EQ(head("gpt2"), "wte.weight");
}

std::string refusal(const ModelConfig& config, int64_t seq = 8) {
  return error_text(Exit::usage, [&] { make_model(config, DType::fp32, seq, "m"); });
}

TEST(Presets, RejectIncompatibleSizes) {
  const ModelConfig good = find_model("llama-3.2-1b");
  EXPECT_EQ(refusal(good), "");
  ModelConfig bad = good;
  bad.kv_heads = 5;
  EXPECT_NE(refusal(bad).find("32 heads"), std::string::npos);
  bad = good, bad.head_dim = 63;
  EXPECT_NE(refusal(bad).find("even"), std::string::npos);
  bad = good, bad.vocab = 0;
  EXPECT_NE(refusal(bad).find("vocabulary"), std::string::npos);
  EXPECT_NE(refusal(good, 131073).find("131072"), std::string::npos);
  EXPECT_NE(refusal(good, 0), "");
}

double flops_of_layers(const Model& m) {
  double sum = 0;
  TensorSpec in = m.input(1);
  for (const auto& layer : m.layers) {
    sum += layer->flops(in);
    in = layer->output(in);
  }
  return sum;
}

// 6 per weight and token in the products of the blocks; 12 per head element and unmasked pair of query and
// key, of which a query's own key counts half.
TEST(Presets, LayersCountTheFlopsOfTheClosedForm) {
  constexpr int64_t kPositions = 64;
  for (const char* name : {"tiny", "gpt2", "llama-tiny", "llama-3.2-1b", "qwen2.5-0.5b", "qwen3-0.6b",
                           "mistral-tiny", "phi-3-mini", "gemma-2-tiny", "gemma-3-1b"}) {
    ModelConfig config = find_model(name);
    if (config.vocab == 0) config.vocab = 256;
    double flops = 0;
    for (const BlockRecipe& b : recipe_of(config).blocks) {
      const AttentionRecipe& a = b.attention;
      const double q = double(a.heads * a.head_dim), kv = double(a.kv_heads * a.head_dim);
      const double weights =
          double(config.width) * (2 * q + 2 * kv + (b.mlp.gated ? 3 : 2) * double(b.mlp.width));
      double pairs = 0;
      for (int64_t at = 0; at < kPositions; ++at)
        pairs += std::min(double(at) + 0.5, a.window > 0 ? double(a.window) : double(kPositions));
      flops += 6 * weights * kPositions + 12 * q * pairs;
    }
    EXPECT_NEAR(flops_of_layers(make_model(config, DType::fp32, kPositions, name)) / flops, 1, 1e-9) << name;
  }
}

// 64 queries see their own and up to 15 earlier keys.
TEST(Presets, AWindowSavesTheFlopsOfHiddenKeys) {
  const auto flops = [](int64_t window) {
    ModelConfig config = find_model("mistral-tiny");
    config.vocab = 256, config.window = window;
    return flops_of_layers(make_model(config, DType::fp32, 64, "m"));
  };
  double area = 0;  // hidden by the mask
  for (int q = 0; q < 64; ++q) area += std::max(0.0, q + 0.5 - 16);
  EXPECT_NEAR(flops(0) - flops(16), 4 * 12 * area * 128, 1e-3 * area);
  EXPECT_EQ(flops(64), flops(0));
}

TEST(Presets, AreFrozenByNameAndCountTheRest) {
  const auto made = [](const char* preset) {
    ModelConfig config = find_model(preset);
    config.vocab = 256;
    return make_model(config, DType::fp32, 16, preset);
  };
  Model m = made("tiny");
  EXPECT_EQ(m.frozen_params(), 0);
  m.freeze({"transformer.wte*", "*.mlp.*"});  // names in files, or names in the model
  EXPECT_EQ(m.frozen_params(), 256 * 128 + 4 * (2 * 4 * 128 * 128 + 5 * 128));
  for (const UnitSpec& unit : m.head->units()) EXPECT_TRUE(unit.frozen) << "it is tied to the embedding";
  Model llama = made("llama-tiny");
  llama.freeze({"model.embed_tokens.*", "model.layers.[012].*"});
  EXPECT_EQ(llama.params() - llama.frozen_params(),
            params_of("llama-tiny") - 3 * (params_of("llama-tiny") - 2 * 256 * 128 - 128) / 4 - 256 * 128);
  const auto refuses = [&](const std::vector<std::string>& patterns,
                           std::initializer_list<const char*> parts) {
    Model fresh = made("tiny");
    for (const char* part : parts) expect_error(Exit::usage, {part}, [&] { fresh.freeze(patterns); });
  };
  refuses({"wte.*", "h.0.mlp.c_cf.weight"},
          {"cleave.freeze", "\"h.0.mlp.c_cf.weight\"", "h.0.mlp.c_fc.weight"});
  refuses({"*"}, {"so nothing would train; remove some patterns"});
}

TEST(Presets, AnUnknownNameIsAnsweredWithTheKnownOnes) {
  expect_error(Exit::usage, {"llama-9", "tiny", "gpt2-xl", "llama-3.1-8b", "qwen2.5-7b", "config.json"},
               [&] { find_model("llama-9"); });
}

TEST(Presets, ANameThatIsAlsoAModelsFolderIsNeitherUntilItIsWrittenOut) {
  const Scratch scratch;
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::create_directory(scratch.path("gpt2"));
  std::filesystem::current_path(scratch.folder());
  ModelConfig other = find_model("gpt2");  // the folder has no model yet
  EXPECT_EQ(other.layers, 12);
  EXPECT_EQ(find_model("preset:gpt2"), other);
  other.layers = 3;
  scratch.write("gpt2/config.json", to_config_json(other));
  EXPECT_EQ(find_model("./gpt2").layers, 3);
  EXPECT_EQ(find_model("preset:gpt2").layers, 12);
  expect_error(
      Exit::usage,
      {"is both a preset and a model folder; write ./gpt2 for the folder, or preset:gpt2 for the preset"},
      [] { find_model("gpt2"); });
  std::filesystem::current_path(before);
}

TEST(Presets, RefuseHeadsThatTheGpuHasNoKernelForBeforeAnythingStarts) {
  for (const char* name : {"gpt2", "gpt2-xl", "llama-3.1-8b", "qwen2.5-7b"})
    check_kernels(find_model(name), Device::cuda(0));
  const ModelConfig wide = model_config(kGpt2, {.width = 768, .layers = 2, .heads = 2});
  check_kernels(wide, Device{});
  try {
    check_kernels(wide, Device::cuda(1));
    FAIL() << "heads of 384 elements were accepted";
  } catch (const Error& e) {
    const std::string text = e.what();
    EXPECT_EQ(e.exit(), Exit::usage);
    for (const char* part : {"384", "256", "cuda:1", "--device cpu"})
      EXPECT_NE(text.find(part), std::string::npos) << text;
    EXPECT_EQ(text.find('\n'), std::string::npos);
  }
}

}  // namespace
}  // namespace cleave::model
