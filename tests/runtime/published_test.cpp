// Folders written by transformers: their logits in every layout, identical bytes when written again, and
// errors of damaged ones. tests/fixtures/make_published_fixtures.py makes them.
#include <nlohmann/json.hpp>

#include "checkpoint/weight_writer.h"
#include "model/presets.h"
#include "runtime/weight_names.h"
#include "tests/runtime/compare.h"
#include "tests/runtime/homes.h"
#include "tests/stored_values.h"

namespace cleave::testing {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kRows = 2, kLength = 12;
constexpr const char* kModels[] = {"gpt2", "gpt2_base",   "llama",       "qwen2",  "qwen3", "mistral",
                                   "phi3", "qwen2_torch", "llama_torch", "gemma2", "gemma3"};

fs::path folder_of(const std::string& name) { return fs::path(FIXTURES "/published") / name; }
model::ModelConfig config_of_folder(const fs::path& folder) {
  return model::find_model((folder / "config.json").string());
}

struct PublishedLayout {
  const char* name;
  int pipe = 1, data = 1, tensor = 1, stage = 0;
  bool inference = false;
  Homes homes = {};
};

config::DsConfig config_of_layout(const PublishedLayout& l) {
  config::DsConfig c = config_for(l.data, kRows, 1);
  c.zero.stage = l.stage, c.pipeline.stages = l.pipe;
  c.tensor_parallel.autotp_size = l.tensor;
  return with(c, l.homes);
}

const PublishedLayout kLayouts[] = {
    {.name = "alone"},
    {.name = "alone_inference", .inference = true},
    {.name = "pipe2", .pipe = 2},
    {.name = "tensor2", .tensor = 2},
    {.name = "stage3", .data = 3, .stage = 3},
    {.name = "stage2_state_on_disk",
     .data = 2,
     .stage = 2,
     .homes = {.optimizer = true, .state_on_disk = true}},
    {.name = "stage3_all_on_disk",
     .data = 2,
     .stage = 3,
     .homes = {.parameters = true, .optimizer = true, .disk = true, .state_on_disk = true}},
    {.name = "tensor2_stage3_inference", .data = 2, .tensor = 2, .stage = 3, .inference = true},
    {.name = "pipe2_tensor2_stage1", .pipe = 2, .data = 2, .tensor = 2, .stage = 1}};

class Published : public ::testing::TestWithParam<PublishedLayout> {};
INSTANTIATE_TEST_SUITE_P(Layouts, Published, ::testing::ValuesIn(kLayouts),
                         [](const auto& at) { return std::string(at.param.name); });

TEST_P(Published, LogitsAreThoseOfTransformers) {
  const PublishedLayout& l = GetParam();
  for (const std::string name : kModels)
    comm::run_ranks(l.pipe * l.data * l.tensor, [&](comm::Communicator& world) {
      const model::ModelConfig config = config_of_folder(folder_of(name));
      const checkpoint::WeightFiles files(folder_of(name));
      const checkpoint::WeightReader reader(files, runtime::weight_names(config, files));
      const checkpoint::SafetensorsFile expected(folder_of(name).string() + ".expected.safetensors");
      auto tokens = stored_values<int32_t>(expected, "tokens");
      runtime::Engine engine(config_of_layout(l),
                             [&](const model::Axes& axes) {
                               return model::make_model(config, DType::fp32, kLength, name, axes);
                             },
                             world, {.inference = l.inference});
      engine.load_weights([&](const checkpoint::Record& r) { reader.read(r); });
      const Tensor input(tokens.data(), DType::int32, {kRows * kLength}, MemoryKind::host);
      const std::vector<float> logits =
          engine.predict({.input = input, .targets = input, .valid_targets = kRows * kLength});
      EXPECT_LT(relative_distance(logits, stored_values<float>(expected, "logits")), 1e-5) << name;
    });
}

TEST(PublishedFolder, WritingGivesBackTheSameBytesInFilesOfAnySize) {
  for (const std::string name : kModels) {
    const model::ModelConfig config = config_of_folder(folder_of(name));
    const checkpoint::WeightFiles files(folder_of(name));
    const checkpoint::WeightReader reader(files, runtime::weight_names(config, files));
    const DType type = files.tensor(runtime::weight_names(config, files).tensors[0].file_name).dtype;
    for (const int64_t most : {int64_t{1}, int64_t{6000}, int64_t{1} << 40}) {
      const Scratch scratch;
      checkpoint::write_weights(scratch.folder(), runtime::weight_names(config), {type, most},
                                [&](auto& r) { reader.read(r); });
      const checkpoint::WeightFiles again(scratch.folder());
      const checkpoint::WeightNames theirs = runtime::weight_names(config, files),
                                    ours = runtime::weight_names(config);
      ASSERT_EQ(again.names().size(), ours.tensors.size()) << name;
      EXPECT_EQ(again.files() == 1, most > 1'000'000);
      for (size_t i = 0; i < ours.tensors.size(); ++i) {
        const auto bytes = [](const checkpoint::WeightFiles& from, const std::string& tensor) {
          const checkpoint::StoredTensor& t = from.tensor(tensor);
          std::vector<std::byte> all(size_t(t.end - t.begin));
          from.file(tensor).read(tensor, 0, all);
          return std::pair(t.shape, all);
        };
        EXPECT_EQ(bytes(again, ours.tensors[i].file_name), bytes(files, theirs.tensors[i].file_name))
            << name << " " << ours.tensors[i].tensor;
        const int64_t size = again.tensor(ours.tensors[i].file_name).end;
        EXPECT_TRUE(size <= most || again.tensor(ours.tensors[i].file_name).begin == 0) << most;
      }
    }
  }
}

// The index written by transformers has its own names and shapes.
TEST(PublishedFolder, NamesAreThoseThatTransformersWrites) {
  for (const std::string name : {"gpt2", "llama", "qwen2", "qwen3", "mistral", "phi3", "gemma2", "gemma3"}) {
    const checkpoint::WeightFiles files(folder_of(name));
    std::vector<std::string> names;
    for (const checkpoint::WeightName& w : runtime::weight_names(config_of_folder(folder_of(name))).tensors)
      names.push_back(w.file_name);
    std::sort(names.begin(), names.end());
    EXPECT_EQ(names, files.names()) << name;
  }
}

// Folder of one model with files that tests can damage.
class Damaged : public ::testing::Test {
 protected:
  void copy(const std::string& name) {
    fs::remove_all(at());
    fs::copy(folder_of(name), at());
    config_ = config_of_folder(at());
  }
  fs::path at() const { return scratch_.folder() / "model"; }
  // Changes the header of a file; tensors keep their bytes.
  void edit(const std::string& file, const std::function<void(nlohmann::ordered_json&)>& change) {
    const std::string all = scratch_.read("model/" + file);
    auto header = nlohmann::ordered_json::parse(all.substr(8, old_length(all)));
    change(header);
    const std::string text = header.dump();
    const uint64_t length = text.size();
    scratch_.write("model/" + file, std::string(reinterpret_cast<const char*>(&length), 8) + text +
                                        all.substr(8 + old_length(all)));
  }
  static size_t old_length(const std::string& all) {
    uint64_t length = 0;
    std::memcpy(&length, all.data(), sizeof length);
    return size_t(length);
  }
  void expect(std::initializer_list<std::string_view> parts) {
    expect_error(Exit::checkpoint, parts, [&] {
      const checkpoint::WeightFiles files(at());
      checkpoint::WeightReader(files, runtime::weight_names(config_, files)).require_tied();
    });
  }
  Scratch scratch_;
  model::ModelConfig config_;
};

TEST_F(Damaged, AllMissingExtraAndMisshapenTensorsAreNamedAtOnce) {
  copy("mistral");
  edit("model.safetensors", [](auto& header) {
    header["model.layers.0.mlp.gate.weight"] = header["model.layers.0.mlp.gate_proj.weight"];
    header.erase("model.layers.0.mlp.gate_proj.weight");
    header["model.layers.1.mlp.down_proj.weight"]["shape"] = {24, 16};
  });
  expect({at().string(), "model.layers.0.mlp.gate_proj.weight is missing",
          "model.layers.0.mlp.gate.weight in model.safetensors is not a parameter",
          "model.layers.1.mlp.down_proj.weight in model.safetensors has the wrong shape (got [24, 16], "
          "expected [16, 24])"});
}

TEST_F(Damaged, AModelWithAnotherNumberOfLayersIsRefusedBothWays) {
  copy("llama");
  config_.layers = 1;
  expect({"model.layers.1.input_layernorm.weight in model-", "is not a parameter of the model"});
  config_.layers = 3;
  expect({"model.layers.2.input_layernorm.weight is missing"});
  config_.layers = 2, config_.vocab = 62;
  expect({"model.embed_tokens.weight", " has the wrong shape (got [61, 16], expected [62, 16])",
          "lm_head.weight"});
}

TEST_F(Damaged, AHeadThatIsTiedMayBeStoredAndMustBeEqual) {
  copy("gpt2_base");
  EXPECT_NO_THROW(config_of_folder(at()));
  std::string all = scratch_.read("model/model.safetensors");
  const checkpoint::SafetensorsFile file(at() / "model.safetensors");
  all[8 + old_length(all) + size_t(file.tensors().at("lm_head.weight").begin) + 40] ^= 1;
  scratch_.write("model/model.safetensors", all);
  expect({"lm_head.weight and wte.weight differ", "tie_word_embeddings"});
}

TEST_F(Damaged, QuantizedWeightsAreNamed) {
  copy("mistral");
  edit("model.safetensors", [](auto& header) {
    auto& t = header["model.norm.weight"];
    t["dtype"] = "F8_E4M3", t["shape"] = {64};
  });
  expect({"has an unsupported type (got F8_E4M3", "quantized"});
  copy("mistral");
  edit("model.safetensors", [](auto& header) {
    auto& t = header["model.norm.weight"];
    t["dtype"] = "I32", t["shape"] = {16};
  });
  expect({"has an unsupported type (got int32"});
}

TEST_F(Damaged, AnIndexWithMissingFilesIsRejected) {
  copy("llama");
  fs::remove(at() / "model-00002-of-00004.safetensors"),
      fs::remove(at() / "model-00004-of-00004.safetensors");
  expect(
      {"model.safetensors.index.json: needs model-00002-of-00004.safetensors, "
       "model-00004-of-00004.safetensors, "
       "which are missing"});
  copy("llama");
  fs::copy_file(at() / "model-00001-of-00004.safetensors", at() / "model-00002-of-00004.safetensors",
                fs::copy_options::overwrite_existing);
  expect({"model-00001-of-00004.safetensors: has the same tensor as"});
  copy("llama");
  const auto with_map = [&](const nlohmann::json& map) {
    scratch_.write("model/model.safetensors.index.json", nlohmann::json{{"weight_map", map}}.dump());
  };
  with_map({{"lm_head.weight", "../model-00001-of-00004.safetensors"}});
  expect({"which is not a file name"});
  with_map({{"lm_head.weight", 7}});
  expect({"which is not a file name"});
  with_map({{"other.weight", "model-00001-of-00004.safetensors"}});
  expect({"'other.weight' in model-00001-of-00004.safetensors, which does not contain this tensor"});
  scratch_.write("model/model.safetensors.index.json", "[]");
  expect({"is damaged or not an index of weights"});
}

TEST_F(Damaged, AFolderWithoutValidWeightsIsRejected) {
  copy("mistral");
  fs::remove(at() / "model.safetensors");
  expect({"contains neither model.safetensors nor pytorch_model.bin nor an index of such files"});
  scratch_.write("model/model.gguf", "x");
  expect({"contains neither model.safetensors nor pytorch_model.bin nor an index of such files",
          "such as model.gguf"});
  scratch_.write("model/model.safetensors", "short");
  expect({"model.safetensors: is damaged or not a safetensors file:"});
}

TEST(WeightWriter, AValueThatTheTypeCannotHoldIsRefused) {
  const Scratch scratch;
  const checkpoint::WeightNames names{.tensors = {{"big", {2}, "big"}}};
  const auto write = [&](DType type) {
    checkpoint::write_weights(scratch.folder(), names, {type}, [&](const checkpoint::Record& r) {
      float values[] = {1, 70000};
      r.write({0, 2}, Tensor(values, DType::fp32, {2}, MemoryKind::host));
    });
  };
  expect_error(Exit::checkpoint, {"big: contains 70000, which does not fit fp16; choose another --dtype"},
               [&] { write(DType::fp16); });
  EXPECT_NO_THROW(write(DType::bf16));
}

}  // namespace
}  // namespace cleave::testing
