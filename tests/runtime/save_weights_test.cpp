// Engine::save_16bit_model: the files of an export of the same state, in every layout and home.
#include <fstream>
#include <nlohmann/json.hpp>

#include "checkpoint/weight_writer.h"
#include "runtime/weight_names.h"
#include "tests/runtime/cut_models.h"
#include "tests/runtime/homes.h"

namespace cleave::testing {
namespace {

namespace fs = std::filesystem;

// GPT-2's matrices are transposed on export, and its head is tied; Llama's is not.
model::ModelConfig config_of_family(bool llama) {
  model::ModelConfig c{.family = llama ? &model::kLlama : &model::kGpt2,
                       .vocab = kVocab,
                       .positions = 11,
                       .width = 16,
                       .layers = 2,
                       .heads = 4,
                       .kv_heads = llama ? int64_t{2} : int64_t{4},
                       .head_dim = 4,
                       .mlp_width = 24,
                       .norm_eps = 1e-5f,
                       .tied = !llama,
                       .qkv_bias = !llama,
                       .output_bias = !llama};
  return c;
}

std::map<std::string, std::string> bytes_in(const fs::path& folder) {
  std::map<std::string, std::string> out;
  for (const auto& entry : fs::directory_iterator(folder)) {
    std::ifstream in(entry.path(), std::ios::binary);
    out[entry.path().filename().string()] = {std::istreambuf_iterator<char>(in), {}};
  }
  return out;
}

struct SaveCase {
  Layout layout;
  Homes homes;
  config::Precision type;
};

TEST(SaveWeights, AreThoseOfAnExportOfTheSameStateInEveryLayoutAndHome) {
  const SaveCase cases[] = {{{}, {}, config::Precision::fp32},
                            {{.pipe = 2, .data = 2, .zero = 3}, {}, config::Precision::bf16},
                            {{.tensor = 2}, {}, config::Precision::bf16},
                            {{.pipe = 2, .tensor = 2, .zero = 1}, {}, config::Precision::fp16},
                            {{.data = 3, .zero = 3},
                             {.parameters = true, .optimizer = true, .disk = true, .state_on_disk = true},
                             config::Precision::bf16},
                            {{.data = 2, .zero = 2}, {.optimizer = true}, config::Precision::fp16}};
  for (const bool llama : {false, true})
    for (const SaveCase& c : cases) {
      SCOPED_TRACE(c.layout.text() + (llama ? " llama" : " gpt"));
      const model::ModelConfig model = config_of_family(llama);
      const checkpoint::WeightNames names = runtime::weight_names(model);
      const config::DsConfig config = in_type(with(config_of(c.layout, 2), c.homes), c.type);
      const fs::path saved = folder().path("saved"), checkpoints = folder().path("checkpoints"),
                     exported = folder().path("exported");
      for (const fs::path& path : {saved, checkpoints, exported}) fs::remove_all(path);
      comm::run_ranks(c.layout.ranks(), [&](comm::Communicator& world) {
        runtime::Engine engine(config,
                               [&](const model::Axes& axes) {
                                 return model::make_model(model, type_of(c.type), kTokens, "m", axes);
                               },
                               world, {});
        train(engine, world, 2, kTokens);
        engine.save_16bit_model(saved.string(), names);
        engine.save_16bit_model(saved.string(), names, 3000);  // replaces the first one
        engine.save_checkpoint(checkpoints.string(), "t");
        train(engine, world, 1, kTokens);  // continues
      });
      fs::create_directories(exported);
      const checkpoint::CheckpointReader reader(checkpoints, "t");
      checkpoint::write_weights(exported, names, {.dtype = type_of(c.type), .max_file_size = 3000},
                                [&](const checkpoint::Record& r) { reader.read(r); });
      EXPECT_GT(bytes_in(exported).size(), 2u);
      EXPECT_EQ(bytes_in(saved), bytes_in(exported));
    }
}

TEST(SaveWeights, ThatCannotBeWrittenAreAnErrorOnEveryRankAndTheOldOnesStay) {
  const model::ModelConfig model = config_of_family(true);
  const checkpoint::WeightNames names = runtime::weight_names(model);
  const fs::path saved = folder().path("kept"), file = folder().path("file");
  std::ofstream(file) << "no folder";
  comm::run_ranks(2, [&](comm::Communicator& world) {
    config::DsConfig config = config_of({.data = 2, .zero = 3}, 1);
    runtime::Engine engine(
        config,
        [&](const model::Axes& axes) { return model::make_model(model, DType::fp32, kTokens, "m", axes); },
        world, {});
    engine.save_16bit_model(saved.string(), names);
    const auto before = bytes_in(saved);
    expect_error(Exit::checkpoint, {"file"}, [&] { engine.save_16bit_model((file / "in").string(), names); });
    runtime::Engine half(
        in_type(config, config::Precision::fp16),
        [&](const model::Axes& axes) { return model::make_model(model, DType::fp16, kTokens, "m", axes); },
        world, {});
    half.set_parameters(
        [&](const ParamSpec& p) { return std::vector<float>(size_t(p.whole_numel()), 1e6f); });
    expect_error(Exit::checkpoint, {"contains 1000000", "fp16"},
                 [&] { half.save_16bit_model(saved.string(), names); });
    EXPECT_EQ(bytes_in(saved), before);
    EXPECT_EQ(engine.parameter("model.norm.weight").size(), 16u) << "the ranks are in step";
  });
}

}  // namespace
}  // namespace cleave::testing
