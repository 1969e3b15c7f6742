#include "model/presets.h"

#include <algorithm>
#include <filesystem>

#include "core/input_file.h"
#include "kernels/attention.h"
#include "model/config_json.h"
#include "model/family.h"

namespace cleave::model {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "preset:";        // selects a preset
constexpr int64_t kLargestConfig = int64_t{16} << 20;  // maximum bytes of a config.json

struct Preset {
  const char* name;
  ModelConfig config;
};

ModelConfig gpt2(ModelConfig c) {
  c.vocab = 50257, c.positions = 1024;
  return model_config(kGpt2, c);
}

// Small model for experiments, with the vocabulary of the data.
ModelConfig tiny(bool tied = false) {
  return {.positions = 1024,
          .width = 128,
          .layers = 4,
          .heads = 4,
          .kv_heads = 2,
          .head_dim = 32,
          .mlp_width = 384,
          .tied = tied};
}

// Layer kinds of a model with full attention in every n-th layer.
std::vector<LayerKind> every_nth_full(int64_t n, int64_t layers) {
  std::vector<LayerKind> kinds;
  for (int64_t l = 1; l <= layers; ++l) kinds.push_back(l % n == 0 ? LayerKind::full : LayerKind::sliding);
  return kinds;
}

ModelConfig gemma2(ModelConfig c) {
  c.query_scalar = c.query_scalar > 0 ? c.query_scalar : double(c.head_dim);
  c.attention_cap = 50, c.logit_cap = 30, c.tied = true;
  c.layer_kinds = every_nth_full(2, c.layers);
  return model_config(kGemma2, c);
}

ModelConfig gemma3(ModelConfig c) {
  c.query_scalar = double(c.head_dim), c.rope_theta = 1e6, c.local_rope_theta = 1e4, c.tied = true;
  c.layer_kinds = every_nth_full(6, c.layers);
  return model_config(kGemma3, c);
}

ModelConfig tiny_window() {
  ModelConfig c = tiny();
  c.window = 64;
  return c;
}

ModelConfig llama3(double rope_factor, ModelConfig c) {
  c.vocab = 128256, c.positions = 131072, c.norm_eps = 1e-5f, c.rope_theta = 500000;
  c.rope = {.kind = RopeScaling::Kind::llama3, .factor = rope_factor};
  c.heads = 32, c.kv_heads = 8;
  return model_config(kLlama, c);
}

ModelConfig qwen2(ModelConfig c) {
  c.rope_theta = 1e6;
  return model_config(kQwen2, c);
}

ModelConfig qwen3(ModelConfig c) {
  c.vocab = 151936, c.positions = 40960, c.kv_heads = 8, c.head_dim = 128;
  c.rope_theta = 1e6, c.tied = true;
  return model_config(kQwen3, c);
}

// Sizes are from the published config.json files.
const std::vector<Preset>& presets() {
  static const std::vector<Preset> all{
      {"tiny", model_config(kGpt2, {.positions = 1024, .width = 128, .layers = 4, .heads = 4})},
      {"gpt2", gpt2({.width = 768, .layers = 12, .heads = 12})},
      {"gpt2-medium", gpt2({.width = 1024, .layers = 24, .heads = 16})},
      {"gpt2-large", gpt2({.width = 1280, .layers = 36, .heads = 20})},
      {"gpt2-xl", gpt2({.width = 1600, .layers = 48, .heads = 25})},
      {"llama-tiny", model_config(kLlama, tiny())},
      {"llama-3.2-1b",
       llama3(32, {.width = 2048, .layers = 16, .head_dim = 64, .mlp_width = 8192, .tied = true})},
      {"llama-3.1-8b", llama3(8, {.width = 4096, .layers = 32, .head_dim = 128, .mlp_width = 14336})},
      {"qwen2-tiny", model_config(kQwen2, tiny(true))},
      {"qwen2.5-0.5b", qwen2({.vocab = 151936,
                              .positions = 32768,
                              .width = 896,
                              .layers = 24,
                              .heads = 14,
                              .kv_heads = 2,
                              .mlp_width = 4864,
                              .tied = true})},
      {"qwen2.5-1.5b", qwen2({.vocab = 151936,
                              .positions = 131072,
                              .width = 1536,
                              .layers = 28,
                              .heads = 12,
                              .kv_heads = 2,
                              .mlp_width = 8960,
                              .tied = true})},
      {"qwen2.5-3b", qwen2({.vocab = 151936,
                            .positions = 32768,
                            .width = 2048,
                            .layers = 36,
                            .heads = 16,
                            .kv_heads = 2,
                            .mlp_width = 11008,
                            .tied = true})},
      {"qwen2.5-7b", qwen2({.vocab = 152064,
                            .positions = 131072,
                            .width = 3584,
                            .layers = 28,
                            .heads = 28,
                            .kv_heads = 4,
                            .mlp_width = 18944})},
      {"qwen3-tiny", model_config(kQwen3, tiny(true))},
      {"qwen3-0.6b", qwen3({.width = 1024, .layers = 28, .heads = 16, .mlp_width = 3072})},
      {"qwen3-1.7b", qwen3({.width = 2048, .layers = 28, .heads = 16, .mlp_width = 6144})},
      {"qwen3-4b", qwen3({.width = 2560, .layers = 36, .heads = 32, .mlp_width = 9728})},
      {"mistral-tiny", model_config(kMistral, tiny())},
      {"mistral-7b-v0.3", model_config(kMistral, {.vocab = 32768,
                                                  .positions = 32768,
                                                  .width = 4096,
                                                  .layers = 32,
                                                  .heads = 32,
                                                  .kv_heads = 8,
                                                  .mlp_width = 14336,
                                                  .norm_eps = 1e-5f,
                                                  .rope_theta = 1e6})},
      {"phi-3-tiny", model_config(kPhi3, tiny())},
      {"phi-3-mini", model_config(kPhi3, {.vocab = 32064,
                                          .positions = 4096,
                                          .width = 3072,
                                          .layers = 32,
                                          .heads = 32,
                                          .mlp_width = 8192,
                                          .window = 2047})},
      {"gemma-2-tiny", gemma2(tiny_window())},
      {"gemma-2-2b", gemma2({.vocab = 256000,
                             .positions = 8192,
                             .width = 2304,
                             .layers = 26,
                             .heads = 8,
                             .kv_heads = 4,
                             .head_dim = 256,
                             .mlp_width = 9216,
                             .window = 4096})},
      {"gemma-3-tiny", gemma3(tiny_window())},
      {"gemma-3-1b", gemma3({.vocab = 262144,
                             .positions = 32768,
                             .width = 1152,
                             .layers = 26,
                             .heads = 4,
                             .kv_heads = 1,
                             .head_dim = 256,
                             .mlp_width = 6912,
                             .window = 512})}};
  return all;
}

const Preset* preset_called(std::string_view name) {
  if (name.starts_with(kPrefix)) name.remove_prefix(kPrefix.size());
  const auto at =
      std::find_if(presets().begin(), presets().end(), [&](const Preset& p) { return name == p.name; });
  return at == presets().end() ? nullptr : &*at;
}

}  // namespace

std::string preset_names() {
  std::string names;
  for (const Preset& p : presets()) names += (names.empty() ? "" : ", ") + std::string(p.name);
  return names;
}

bool is_preset(const std::string& name) { return preset_called(name) != nullptr; }

void require_one_meaning(const std::string& name) {
  std::error_code none;
  const bool both = is_preset(name) && fs::exists(fs::path(name) / "config.json", none);
  require(
      !both, Exit::usage,
      "{0}: is both a preset and a model folder; write ./{0} for the folder, or preset:{0} for the preset",
      name);
}

ModelConfig find_model(const std::string& name) {
  require_one_meaning(name);
  if (const Preset* preset = preset_called(name)) return preset->config;
  std::error_code none;
  const fs::path path = fs::is_directory(name, none) ? fs::path(name) / "config.json" : fs::path(name);
  require(fs::is_regular_file(path, none), Exit::usage,
          "--model {}: not a preset, a config.json or a folder with one; presets are {}", name,
          preset_names());
  return read_config_json(InputFile(path.string(), Exit::usage).text(kLargestConfig), path.string());
}

void check_kernels(const ModelConfig& config, Device device) {
  require(!device.is_cuda() || config.head_dim <= kernels::kGpuHeadDim, Exit::usage,
          "model: heads too wide (got {} elements; the attention kernels of {} support up to {}); use "
          "--device cpu or a model with more, narrower heads",
          config.head_dim, name_of(device), kernels::kGpuHeadDim);
}

}  // namespace cleave::model
