#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "app/commands.h"
#include "app/output_paths.h"
#include "app/parse.h"
#include "app/published_model.h"
#include "app/tokenizer_files.h"
#include "checkpoint/deepspeed_checkpoint.h"
#include "checkpoint/pipeline_names.h"
#include "comm/communicator.h"
#include "core/json_path.h"
#include "core/units.h"
#include "model/config_json.h"
#include "model/presets.h"
#include "optim/loss_scaler.h"
#include "runtime/saved_training.h"
#include "runtime/weight_names.h"

namespace cleave::app {
namespace {

namespace fs = std::filesystem;

// Returns a whole parameter as a record of a checkpoint, read in pieces.
checkpoint::Record record_of(const std::string& kind, const checkpoint::WeightName& w,
                             const checkpoint::WeightReader& reader) {
  const checkpoint::Elements all{
      {0, std::accumulate(w.shape.begin(), w.shape.end(), int64_t{1}, std::multiplies<>())}};
  return {kind,
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

struct ImportOptions {
  std::string from, to, model, tag = "latest";
  bool deepspeed = false;
  int64_t seq_len = 2048;

  model::ModelConfig config() const {
    if (!model.empty()) return model::find_model(model);
    std::error_code error;
    require(fs::exists(fs::path(from) / "config.json", error), Exit::usage,
            "{}: contains no config.json; pass --model with a config.json or a folder that contains one",
            from);
    return published_config(from);
  }
};

void make_folder(const ImportOptions& o) {
  std::error_code error;
  fs::create_directories(o.to, error);
  require(!error, Exit::checkpoint, "{}: cannot be created: {}", o.to, error.message());
}

void save(const ImportOptions& o, const model::ModelConfig& config, const runtime::Restored& from,
          const std::vector<checkpoint::Record>& records) {
  const nlohmann::json facts{{"model", path_in_json(o.from)},
                             {"config", nlohmann::json::parse(model::to_config_json(config))},
                             {"vocab", config.vocab},
                             {"seq_len", std::min(o.seq_len, config.positions)},
                             {"tokenizer", "ids"},
                             {"imported", true}};
  make_folder(o);
  require_own_tokenizer(o.to, nullptr);
  keep_model_files(o.from, o.to);
  checkpoint::save_checkpoint(o.to, fmt::format("global_step{}", from.at.step), records,
                              runtime::to_json(from.at, from.scaler, facts.dump()),
                              *comm::self_communicator());
}

std::string import_model(const ImportOptions& o) {
  const model::ModelConfig config = o.config();
  const PublishedModel model(o.from, config);
  model.reader().require_tied();
  std::vector<checkpoint::Record> records;
  for (const checkpoint::WeightName& w : model.names().tensors)
    records.push_back(record_of("master", w, model.reader()));
  save(o, config, {}, records);
  return fmt::format("{}/global_step0: weights of {}", o.to, model.describe());
}

std::string import_deepspeed(const ImportOptions& o) {
  const model::ModelConfig config = o.config();
  checkpoint::DeepSpeedCheckpoint checkpoint(o.from, o.tag);
  if (checkpoint.pipeline())
    checkpoint.rename(checkpoint::published_names(checkpoint.shapes(), runtime::weight_names(config),
                                                  checkpoint.path().string()));
  const std::vector<std::string> kinds = checkpoint.kinds();
  std::vector<std::unique_ptr<PublishedModel>> models;
  std::vector<checkpoint::Record> records;
  for (const std::string& kind : kinds) {
    const PublishedModel& model =
        *models.emplace_back(std::make_unique<PublishedModel>(checkpoint.tensors(kind), config));
    model.reader().require_tied();
    for (const checkpoint::WeightName& w : model.names().tensors)
      records.push_back(record_of(kind, w, model.reader()));
  }
  const runtime::Restored from = runtime::restored_from(checkpoint);
  save(o, config, from, records);
  return fmt::format("{}/global_step{}: weights{} of {}", o.to, from.at.step,
                     kinds.size() > 1 ? " and Adam's moments" : "", checkpoint.path().string());
}

}  // namespace

int run_import(const Arguments& arguments) {
  CLI::App app(
      "Converts a published model (a Hugging Face folder with config.json and weights) to a checkpoint with "
      "a new optimizer state. cleave train --model FOLDER starts from such a folder directly.\nWith "
      "--from_deepspeed, converts a DeepSpeed ZeRO checkpoint, pipelines included: fp32 weights and Adam "
      "moments.\nExample: cleave import models/Qwen3-0.6B runs/qwen3\nExample: cleave import "
      "--from_deepspeed old/checkpoints runs/new --model models/Qwen3-0.6B",
      "import");
  ImportOptions o;
  app.add_option("folder", o.from, "published model, or DeepSpeed checkpoint folder")->required();
  app.add_option("out", o.to, "folder of checkpoints to create")->required();
  auto* deepspeed = app.add_flag("--from_deepspeed", o.deepspeed,
                                 "the folder contains DeepSpeed checkpoints with ZeRO stage 1, 2 or 3");
  app.add_option("--model", o.model,
                 "config.json of the model, or a folder with it (default: the one in the folder)");
  app.add_option("--tag", o.tag, "DeepSpeed checkpoint to read")->capture_default_str()->needs(deepspeed);
  app.add_option("--seq_len", o.seq_len,
                 "sequence length for eval and generate; at most the positions of the model")
      ->capture_default_str()
      ->check(integer(1));
  if (!parse(app, arguments)) return 0;
  model::require_one_meaning(o.from);
  std::error_code error;
  require(fs::is_directory(o.from, error), Exit::usage, "{}: not a folder (expected a folder with weights)",
          o.from);
  require(checkpoint::checkpoint_folders(o.to).empty(), Exit::usage,
          "{}: already contains checkpoints; choose another folder, or remove them", o.to);
  std::printf("%s\n", (o.deepspeed ? import_deepspeed(o) : import_model(o)).c_str());
  return 0;
}

}  // namespace cleave::app
