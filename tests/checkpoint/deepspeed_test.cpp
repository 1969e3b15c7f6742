// Folders that DeepSpeed wrote, against what DeepSpeed said is in them;
// tests/fixtures/make_deepspeed_checkpoints.py makes both.
#include <gtest/gtest.h>

#include "checkpoint/deepspeed_checkpoint.h"
#include "checkpoint/safetensors.h"
#include "tests/scratch.h"

namespace cleave::testing {
namespace {

namespace fs = std::filesystem;

fs::path folder_of(const std::string& name) { return fs::path(FIXTURES "/deepspeed") / name; }

template <class T>
std::vector<T> all_of(const TensorFile& file, const std::string& name) {
  const StoredTensor& t = file.tensors().at(name);
  std::vector<T> values(size_t(t.end - t.begin) / sizeof(T));
  file.read(name, 0, std::as_writable_bytes(std::span(values)));
  return values;
}

TEST(DeepSpeedCheckpoint, WeightsAndMomentsOfEveryStageAreWhatDeepSpeedSays) {
  for (const std::string name : {"zero1_bf16", "zero2_bf16", "zero3_bf16", "zero2_fp32"}) {
    const SafetensorsFile expected(folder_of(name).string() + ".expected.safetensors");
    const DeepSpeedCheckpoint checkpoint(folder_of(name), "latest");
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
        const std::vector<float> values = all_of<float>(*tensors, tensor);
        EXPECT_EQ(values, all_of<float>(expected, theirs)) << name << " " << theirs;
        std::vector<float> two(2);  // in the middle
        tensors->read(tensor, int64_t(values.size() / 2 - 1) * 4, std::as_writable_bytes(std::span(two)));
        EXPECT_EQ(two[1], values[values.size() / 2]);
        ++compared;
      }
    }
    EXPECT_EQ(compared + 2, expected.tensors().size()) << name;
  }
}

class DamagedDeepSpeed : public ::testing::Test {
 protected:
  fs::path copy(const std::string& name) {
    fs::remove_all(scratch_.folder() / "x");
    fs::copy(folder_of(name), scratch_.folder() / "x", fs::copy_options::recursive);
    return scratch_.folder() / "x/global_step3";
  }
  void expect(std::initializer_list<std::string_view> parts, const std::string& tag = "latest") {
    expect_error(Exit::checkpoint, parts, [&] { DeepSpeedCheckpoint(scratch_.folder() / "x", tag); });
  }
  Scratch scratch_;
};

TEST_F(DamagedDeepSpeed, FilesThatAreMissingAreNamed) {
  fs::path step = copy("zero2_bf16");
  fs::remove(step / "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt");
  expect({"global_step3", "3 ranks wrote it, and the file of rank 1",
          "zero_pp_rank_1_mp_rank_00_optim_states.pt"});
  step = copy("zero2_bf16");
  fs::remove(step / "mp_rank_00_model_states.pt");
  expect({"has no mp_rank_00_model_states.pt"});
  step = copy("zero2_bf16");
  for (int rank = 0; rank < 3; ++rank)
    fs::remove(step / fmt::format("bf16_zero_pp_rank_{}_mp_rank_00_optim_states.pt", rank));
  expect({"only what ZeRO stages 1 to 3 saved"});
  copy("zero2_bf16");
  fs::remove(scratch_.folder() / "x/latest");
  expect({"has no file 'latest'"});
  expect({"not the name of a checkpoint"}, "../x");
}

TEST_F(DamagedDeepSpeed, FilesOfOtherRanksAndCheckpointsAreRefused) {
  const auto put = [&](const fs::path& step, const std::string& from, int rank) {
    const std::string file = fmt::format("zero_pp_rank_{}_mp_rank_00_optim_states.pt", rank);
    fs::copy_file(folder_of(from) / "global_step3" / ("bf16_" + file), step / ("bf16_" + file),
                  fs::copy_options::overwrite_existing);
  };
  put(copy("zero2_bf16"), "zero1_bf16", 0);
  expect({"in group 0, and its parameters have 1112"});
  put(copy("zero2_bf16"), "zero3_bf16", 1);
  expect({"bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt has no fp32 weights"});
  put(copy("zero3_bf16"), "zero2_bf16", 2);
  expect({"bf16_zero_pp_rank_2_mp_rank_00_optim_states.pt has no fp32 weights"});
}

TEST_F(DamagedDeepSpeed, PipelinesAndCutLayersAreRefusedByName) {
  const fs::path step = copy("zero1_bf16");
  std::ofstream(step / "mp_rank_01_model_states.pt") << "x";
  expect({"cut over several ranks"});
  std::ofstream(step / "layer_00-model_states.pt") << "x";
  expect({"written by a pipeline"});
}

}  // namespace
}  // namespace cleave::testing
