// Reads DeepSpeed checkpoint folders, and compares with values that DeepSpeed reported;
// tests/fixtures/make_deepspeed_checkpoints.py makes both.
#include <gtest/gtest.h>

#include <cstring>

#include "checkpoint/deepspeed_checkpoint.h"
#include "checkpoint/pipeline_names.h"
#include "checkpoint/safetensors.h"
#include "core/input_file.h"
#include "tests/scratch.h"
#include "tests/stored_values.h"

namespace cleave::testing {
namespace {

namespace fs = std::filesystem;

fs::path folder_of(const std::string& name) { return fs::path(FIXTURES "/deepspeed") / name; }

TEST(DeepSpeedCheckpoint, WeightsAndMomentsOfEveryStageEqualDeepSpeed) {
  for (const std::string name : {"zero1_bf16", "zero2_bf16", "zero3_bf16", "zero2_fp32"}) {
    const checkpoint::SafetensorsFile expected(folder_of(name).string() + ".expected.safetensors");
    const checkpoint::DeepSpeedCheckpoint checkpoint(folder_of(name), "latest");
    ASSERT_EQ(checkpoint.kinds(), (std::vector<std::string>{"master", "exp_avg", "exp_avg_sq"})) << name;
    EXPECT_EQ(checkpoint.steps(), 3);
    EXPECT_EQ(checkpoint.skipped(), 0);
    EXPECT_EQ(checkpoint.optimizer_steps(), 3);
    size_t compared = 0;
    for (const std::string& kind : checkpoint.kinds()) {
      const auto tensors = checkpoint.tensors(kind);
      for (const auto& [tensor, stored] : tensors->tensors()) {
        const std::string theirs = (kind == "master" ? "fp32" : kind) + "." + tensor;
        EXPECT_EQ(stored.shape, expected.tensors().at(theirs).shape);
        const std::vector<float> values = stored_values<float>(*tensors, tensor);
        EXPECT_EQ(values, stored_values<float>(expected, theirs)) << name << " " << theirs;
        std::vector<float> two(2);  // in the middle
        tensors->read(tensor, int64_t(values.size() / 2 - 1) * 4, std::as_writable_bytes(std::span(two)));
        EXPECT_EQ(two[1], values[values.size() / 2]);
        ++compared;
      }
    }
    EXPECT_EQ(compared + 2, expected.tensors().size()) << name;
  }
}

TEST(DeepSpeedCheckpoint, TheLossScaleEqualsDeepSpeed) {
  const auto found = [](const std::string& name) {
    return checkpoint::DeepSpeedCheckpoint(folder_of(name), "latest").loss_scale();
  };
  const auto said = [](const std::string& name) {
    const checkpoint::SafetensorsFile expected(folder_of(name).string() + ".expected.safetensors");
    return stored_values<float>(expected, "loss_scale");
  };
  const auto moving = found("zero1_fp16"), fixed = found("zero2_fp16");
  ASSERT_TRUE(moving && fixed);
  EXPECT_TRUE(moving->moves);
  EXPECT_EQ((std::vector<float>{float(moving->scale), float(moving->iteration), float(moving->last_overflow),
                                float(moving->hysteresis)}),
            said("zero1_fp16"));
  EXPECT_GT(moving->last_overflow, 0) << "its overflows moved it";
  EXPECT_FALSE(fixed->moves);
  EXPECT_EQ(std::vector<float>{float(fixed->scale)}, said("zero2_fp16"));
  EXPECT_FALSE(found("zero2_fp32"));
  EXPECT_FALSE(found("zero3_bf16"));
}

checkpoint::WeightNames qwen2_names() {
  checkpoint::WeightNames names;
  const auto add = [&](const std::string& name, const std::vector<int64_t>& shape) {
    names.tensors.push_back({name, shape, "model." + name});
  };
  add("embed_tokens.weight", {31, 8});
  for (int i = 0; i < 3; ++i) {
    const std::string block = fmt::format("layers.{}.", i);
    for (const char* norm : {"input_layernorm", "post_attention_layernorm"})
      add(block + norm + ".weight", {8});
    for (const auto& [name, rows] : {std::pair{"q", 8}, std::pair{"k", 4}, std::pair{"v", 4}}) {
      add(fmt::format("{}self_attn.{}_proj.weight", block, name), {rows, 8});
      add(fmt::format("{}self_attn.{}_proj.bias", block, name), {rows});
    }
    add(block + "self_attn.o_proj.weight", {8, 8});
    for (const char* name : {"gate", "up"}) add(fmt::format("{}mlp.{}_proj.weight", block, name), {10, 8});
    add(block + "mlp.down_proj.weight", {8, 10});
  }
  add("norm.weight", {8});
  return names;
}

TEST(DeepSpeedCheckpoint, OfAPipelineEqualsDeepSpeedUnderPublishedNames) {
  const checkpoint::SafetensorsFile expected(folder_of("pipe2_bf16").string() + ".expected.safetensors");
  checkpoint::DeepSpeedCheckpoint checkpoint(folder_of("pipe2_bf16"), "latest");
  ASSERT_TRUE(checkpoint.pipeline());
  ASSERT_EQ(checkpoint.kinds(), (std::vector<std::string>{"master", "exp_avg", "exp_avg_sq"}));
  EXPECT_EQ(checkpoint.optimizer_steps(), 3);
  const auto shapes = checkpoint.shapes();
  EXPECT_TRUE(shapes.contains("tied_modules.embed.weight"));
  EXPECT_TRUE(shapes.contains("3.self_attn.q_proj.weight"));
  checkpoint.rename(checkpoint::published_names(shapes, qwen2_names(), "here"));
  size_t compared = 2;  // tokens and the loss
  for (const std::string& kind : checkpoint.kinds()) {
    const auto tensors = checkpoint.tensors(kind);
    for (const auto& [tensor, stored] : tensors->tensors()) {
      const std::string theirs = (kind == "master" ? "fp32" : kind) + "." + tensor;
      EXPECT_EQ(stored_values<float>(*tensors, tensor), stored_values<float>(expected, theirs)) << theirs;
      ++compared;
    }
  }
  EXPECT_EQ(compared, expected.tensors().size());
}

TEST(PipelineNames, AreFoundByLayerAndShapeOrRejectedByName) {
  using Shapes = std::map<std::string, std::vector<int64_t>>;
  const checkpoint::WeightNames model{.tensors = {{"", {9, 4}, "model.embed.weight"},
                                                  {"", {4, 4}, "model.layers.0.up.weight", true},
                                                  {"", {4, 4}, "model.layers.1.up.weight"},
                                                  {"", {4}, "model.norm.weight"},
                                                  {"", {9, 4}, "lm_head.weight"}}};
  const Shapes good{{"0.weight", {9, 4}},
                    {"2.block.up.weight", {4, 4}},  // a layer without parameters precedes it
                    {"10.block.up.weight", {4, 4}},
                    {"11.weight", {4}},
                    {"12.weight", {9, 4}}};
  EXPECT_EQ(checkpoint::published_names(good, model, "here"),
            (std::map<std::string, std::string>{{"0.weight", "model.embed.weight"},
                                                {"2.block.up.weight", "model.layers.0.up.weight"},
                                                {"10.block.up.weight", "model.layers.1.up.weight"},
                                                {"11.weight", "model.norm.weight"},
                                                {"12.weight", "lm_head.weight"}}));
  const auto refused = [&](std::initializer_list<std::string_view> parts, const auto& change) {
    Shapes shapes = good;
    change(shapes);
    expect_error(Exit::checkpoint, parts, [&] { checkpoint::published_names(shapes, model, "here"); });
  };
  refused({"here", "1 of its layers look like blocks, but the model has 2"},
          [](Shapes& s) { s.erase("2.block.up.weight"); });
  refused({"no parameter matches lm_head.weight [9, 4]"}, [](Shapes& s) { s.erase("12.weight"); });
  refused({"'13.extra' does not exist in the model"}, [](Shapes& s) { s["13.extra"] = {2}; });
  refused({"lm_head.weight is ambiguous: '13.weight' or '12.weight'"}, [](Shapes& s) {
    s["13.weight"] = {9, 4};
  });
  refused({"'10.block.up.weight' has the shape [4, 3]"}, [](Shapes& s) { s["10.block.up.weight"] = {4, 3}; });
}

class DamagedDeepSpeed : public ::testing::Test {
 protected:
  fs::path copy(const std::string& name) {
    fs::remove_all(scratch_.folder() / "x");
    fs::copy(folder_of(name), scratch_.folder() / "x", fs::copy_options::recursive);
    return scratch_.folder() / "x/global_step3";
  }
  void expect(std::initializer_list<std::string_view> parts, const std::string& tag = "latest") {
    expect_error(Exit::checkpoint, parts,
                 [&] { checkpoint::DeepSpeedCheckpoint(scratch_.folder() / "x", tag); });
  }
  Scratch scratch_;
};

TEST_F(DamagedDeepSpeed, MissingFilesAreNamed) {
  fs::path step = copy("zero2_bf16");
  fs::remove(step / "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt");
  expect({"global_step3", "3 ranks wrote it, but the file of rank 1",
          "zero_pp_rank_1_mp_rank_00_optim_states.pt"});
  step = copy("zero2_bf16");
  fs::remove(step / "mp_rank_00_model_states.pt");
  expect({"mp_rank_00_model_states.pt is missing, and so is the file of stage 3"});
  step = copy("zero2_bf16");
  for (int rank = 0; rank < 3; ++rank)
    fs::remove(step / fmt::format("bf16_zero_pp_rank_{}_mp_rank_00_optim_states.pt", rank));
  expect({"_optim_states.pt is missing; only checkpoints of ZeRO stages 1 to 3 are supported"});
  copy("zero2_bf16");
  fs::remove(scratch_.folder() / "x/latest");
  expect({"the file 'latest'"});
  expect({"not the name of a checkpoint"}, "../x");
}

TEST_F(DamagedDeepSpeed, FilesOfOtherRanksAndCheckpointsAreRejected) {
  const auto put = [&](const fs::path& step, const std::string& from, int rank) {
    const std::string file = fmt::format("zero_pp_rank_{}_mp_rank_00_optim_states.pt", rank);
    fs::copy_file(folder_of(from) / "global_step3" / ("bf16_" + file), step / ("bf16_" + file),
                  fs::copy_options::overwrite_existing);
  };
  put(copy("zero2_bf16"), "zero1_bf16", 0);
  expect({" in group 0 do not match its parameters (expected 1112"});
  put(copy("zero2_bf16"), "zero3_bf16", 1);
  expect({"bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt contains no fp32 weights"});
  put(copy("zero3_bf16"), "zero2_bf16", 2);
  expect({"bf16_zero_pp_rank_2_mp_rank_00_optim_states.pt contains no fp32 weights"});
}

TEST_F(DamagedDeepSpeed, DividedLayersAreRejectedByName) {
  fs::path step = copy("zero1_bf16");
  std::ofstream(step / "mp_rank_01_model_states.pt") << "x";
  expect({"tensor-parallel checkpoints are not supported"});
  step = copy("pipe2_bf16");
  std::ofstream(step / "layer_00-model_01-model_states.pt") << "x";
  expect({"tensor-parallel checkpoints are not supported"});
}

// Replaces the number 3 after a key of the file's pickle by 2^62. The new pickle is appended to the archive's
// files. A table of contents without ZIP64 records follows; its first entry is the pickle.
void make_huge(const fs::path& path, const std::string& key) {
  std::string file = InputFile(path.string(), Exit::internal).text();
  const auto at = [&](size_t place) {
    uint32_t value = 0;
    std::memcpy(&value, file.data() + place, sizeof value);
    return value;
  };
  const size_t end = file.size() - 22, directory = at(end + 16), name = at(26) & 0xffff, extra = at(26) >> 16;
  std::string pickle = file.substr(30 + name + extra, at(directory + 24));
  const size_t number = pickle.find("K\x03", pickle.find(key));
  pickle.replace(number, 2, "\x8a\x08" + std::string(7, '\0') + "\x40");
  std::string table = file.substr(directory, at(end + 12)) + file.substr(end),
              entry = file.substr(0, 30 + name);
  const auto put = [](std::string& to, size_t place, size_t value) {
    std::memcpy(to.data() + place, &value, 4);
  };
  entry[28] = entry[29] = 0;
  put(table, 20, pickle.size()), put(table, 24, pickle.size()), put(table, 42, directory);
  put(table, table.size() - 6, directory + entry.size() + pickle.size());
  std::ofstream(path, std::ios::binary) << file.substr(0, directory) << entry << pickle << table;
}

TEST_F(DamagedDeepSpeed, ImpossibleStepCountsAreRejected) {
  make_huge(copy("zero1_fp16") / "mp_rank_00_model_states.pt", "global_steps");
  expect({"it skipped", "of 4611686018427387904 steps"});
  make_huge(copy("zero1_fp16") / "zero_pp_rank_0_mp_rank_00_optim_states.pt", "cur_iter");
  expect({"the loss scaler has an invalid value (got 4.61", "for cur_iter"});
}

TEST_F(DamagedDeepSpeed, MissingStagesAreNamed) {
  fs::path step = copy("pipe2_bf16");
  fs::remove(step / "mp_rank_01_model_states.pt");
  expect({"mp_rank_01_model_states.pt is missing, and so is the file of stage 3"});
  step = copy("pipe2_bf16");
  fs::remove(step / "bf16_zero_pp_rank_1_mp_rank_01_optim_states.pt");
  expect({"2 ranks wrote it, but the file of rank 1", "mp_rank_01_optim_states.pt"});
  step = copy("pipe2_bf16");
  fs::copy_file(step / "mp_rank_00_model_states.pt", step / "mp_rank_01_model_states.pt",
                fs::copy_options::overwrite_existing);
  expect({" elements of master in group 0 do not match its parameters (expected"});
}

}  // namespace
}  // namespace cleave::testing
