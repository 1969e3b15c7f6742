#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "app/output_paths.h"
#include "app/parse.h"
#include "app/published_model.h"
#include "comm/communicator.h"
#include "core/units.h"
#include "model/config_json.h"
#include "model/presets.h"
#include "optim/loss_scaler.h"
#include "runtime/training_state.h"

namespace cleave {
namespace {

namespace fs = std::filesystem;

constexpr std::pair<const char*, DType> kTypes[] = {
    {"fp32", DType::fp32}, {"bf16", DType::bf16}, {"fp16", DType::fp16}};

// A whole parameter as a record that a checkpoint saves, read from a published model in pieces.
Record record_of(const WeightName& w, const WeightReader& reader) {
  const Elements all{{0, std::accumulate(w.shape.begin(), w.shape.end(), int64_t{1}, std::multiplies<>())}};
  return {"master",
          w.tensor,
          w.shape,
          all,
          [&w, &reader](Range piece, Tensor to) {
            reader.read({"master", w.tensor, w.shape, {piece}, {}, [&](Range at, Tensor from) {
                           std::copy_n(from.as<float>(), from.numel(), to.as<float>() + at.begin);
                         }});
          },
          {}};
}

std::string import_model(const std::string& from, const std::string& to, int64_t seq_len) {
  std::error_code error;
  require(fs::is_directory(from, error), Exit::usage,
          "{} is not a folder; wanted one with config.json and weights", from);
  const ModelConfig config = find_model((fs::path(from) / "config.json").string());
  seq_len = std::min(seq_len, config.positions);
  const PublishedModel model(from, config);
  require(checkpoint_folders(to).empty(), Exit::usage,
          "{} has checkpoints already; name another folder, or remove them", to);
  model.reader().require_tied();
  fs::create_directories(to, error);
  require(!error, Exit::checkpoint, "cannot make {}: {}", to, error.message());
  std::vector<Record> records;
  for (const WeightName& w : model.names().tensors) records.push_back(record_of(w, model.reader()));
  const nlohmann::json facts{
      {"model", from},         {"config", nlohmann::json::parse(to_config_json(config))},
      {"vocab", config.vocab}, {"seq_len", seq_len},
      {"tokenizer", "ids"},    {"imported", true}};
  keep_model_files(from, to);
  save_checkpoint(to, "global_step0", records, to_json({}, {}, 0, facts.dump()), *self_communicator());
  return fmt::format("{}/global_step0: {}", to, model.describe());
}

}  // namespace

int run_import(const Arguments& arguments) {
  CLI::App app(
      "Makes a checkpoint of a published model: a folder of Hugging Face with config.json and safetensors. "
      "Training from it begins the optimizer anew. (cleave train --model FOLDER starts from the weights "
      "without one.)\n"
      "Example: cleave import models/Qwen3-0.6B runs/qwen3",
      "import");
  std::string from, to;
  int64_t seq_len = 2048;
  app.add_option("folder", from, "the published model")->required();
  app.add_option("out", to, "folder of checkpoints to make")->required();
  app.add_option("--seq_len", seq_len, "tokens that eval and generate look at; at most the model's positions")
      ->capture_default_str()
      ->check(integer(1));
  if (!parse(app, arguments)) return 0;
  std::printf("%s\n", import_model(from, to, seq_len).c_str());
  return 0;
}

int run_export(const Arguments& arguments) {
  CLI::App app(
      "Makes a folder of a checkpoint that transformers, vLLM and others read: safetensors, config.json, and "
      "the tokenizer's files where the training began with a published model.\n"
      "Example: cleave export runs/first first-hf --dtype bf16",
      "export");
  std::string from, to, tag = "latest", dtype = "fp32", size = "5GB";
  app.add_option("dir", from, "folder of checkpoints")->required();
  app.add_option("out", to, "folder to make; it is never overwritten")->required();
  app.add_option("--tag", tag, "which checkpoint")->capture_default_str();
  app.add_option("--dtype", dtype, "of the weights: fp32, bf16 or fp16")
      ->capture_default_str()
      ->check(one_of({"fp32", "bf16", "fp16"}));
  app.add_option("--max_shard_size", size, "largest file of weights, such as 500MB")->capture_default_str();
  if (!parse(app, arguments)) return 0;
  require_free(to);
  WeightFormat format{.max_file_size = parse_bytes(size, "--max_shard_size")};
  require(format.max_file_size > 0, Exit::usage, "--max_shard_size: wanted more than 0 bytes");
  for (const auto& [name, type] : kTypes)
    if (dtype == name) format.dtype = type;
  std::printf("%s\n", export_checkpoint(from, tag, to, format).c_str());
  return 0;
}

}  // namespace cleave
