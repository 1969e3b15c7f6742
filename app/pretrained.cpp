#include "app/pretrained.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "app/adapters.h"
#include "app/add_options.h"
#include "app/parse.h"
#include "checkpoint/checkpoint.h"
#include "core/json.h"
#include "core/json_path.h"
#include "core/units.h"
#include "core/warnings.h"
#include "model/config_json.h"
#include "runtime/step/settings.h"
#include "runtime/step/training_state.h"

namespace cleave::app {
namespace fs = std::filesystem;
namespace {

config::DsConfig layout_of(const PretrainedOptions& o, const model::ModelConfig& model,
                           const launcher::Job& job) {
  config::DsConfig config;
  if (o.config.empty()) {
    config.train_micro_batch_size_per_gpu = o.micro_batch;
    config.gradient_accumulation_steps = 1;
    config.train_batch_size = o.micro_batch * job.info().world;
    return config;
  }
  config::AutoValues values = o.values;
  values.hidden_size = model.width;
  values.total_steps = 1;  // of a schedule that is not used
  config::ReadOptions reading = job.read_options(o.strict, values);
  reading.micro_batch_size = o.micro_batch;
  const config::ReadResult read = job.read_config(o.config, reading);
  if (job.first() && o.verbose) std::fputs(config::format(read.notes).c_str(), stderr);
  return read.config;
}

// Prints one line on stderr, so that stdout contains only the result.
void say_layout(const runtime::Engine& engine, const launcher::Job& job) {
  const MeshShape& mesh = engine.mesh();
  const MemoryTable memory = engine.memory_planned();
  std::string axes;
  for (const MeshAxis& a : kMeshAxes)
    if (const int size = mesh.*a.size; size > 1)
      axes += fmt::format("{}{} {}", axes.empty() ? ", " : " x ", name_of(a.axis), size);
  std::fprintf(
      stderr,
      "%lld parameters in %s on %d rank%s%s, %s per rank; rank 0 needs %s of device and %s of host memory\n",
      static_cast<long long>(engine.params()), std::string(name_of(engine.model().dtype)).c_str(),
      mesh.size(), mesh.size() > 1 ? "s" : "", axes.c_str(), job.threads().c_str(),
      format_bytes(memory.total(MemoryKind::device)).c_str(),
      format_bytes(memory.total(MemoryKind::pinned) + memory.total(MemoryKind::host)).c_str());
}

}  // namespace

void add_options(CLI::App& app, PretrainedOptions& o) {
  app.add_option("dir", o.dir,
                 "folder of checkpoints, one checkpoint, or a published model with config.json and weights")
      ->required();
  app.add_option("--tag", o.tag, "which one")->capture_default_str();
  add_config_option(app, o.config,
                    "ds_config with the layout, type and offload of the model; training keys have no effect "
                    "(default: every rank has the whole model in fp32)",
                    false);
  app.add_option("--tokenizer", o.tokenizer,
                 "byte, a tokenizer.json or a tokenizer.model (default: the tokenizer of the checkpoint or "
                 "of the model folder)");
  app.add_option("--seq_len", o.seq_len,
                 "positions of a text that the model sees (0: as in the training; for a published model "
                 "2048, or its maximum)")
      ->capture_default_str()
      ->check(integer(0));
  app.add_flag("--strict", o.strict, "treat warnings about the ds_config and the tokenizer as errors");
  auto* verbose = app.add_flag("--verbose", o.verbose, "also print every key and the complete memory table");
  app.add_flag("--quiet", o.quiet, "print only the result, errors and warnings")->excludes(verbose);
  add_options(app, o.ranks);
  add_options(app, o.values, InHelp::no);
}

model::ModelConfig Pretrained::read_checkpoint(const PretrainedOptions& o) {
  const auto [folder, tag] = named_checkpoint(o.dir, o.tag);
  const checkpoint::CheckpointReader reader(folder, tag);
  model::ModelConfig model;
  try {
    const auto client =
        nlohmann::json::parse(runtime::from_json(reader.state(), reader.path().string()).client);
    name_ = path_from_json(client.at("model").get<std::string>()), seq_len_ = counted(client.at("seq_len")),
    vocab_ = counted(client.at("vocab"));
    // Checkpoints of version 0.1 contain only the name of a preset.
    model = client.contains("config")
                ? model::read_config_json(client["config"].dump(), reader.path().string())
                : model::find_model("preset:" + name_);
    lora_ = lora_in(client);
    bytes_ = client.at("tokenizer") == "byte";
    tokenizer_path_ = bytes_ ? "byte" : path_from_json(client.value("tokenizer_path", ""));
    tokenizer_digest_ = client.value("tokenizer_digest", "");
  } catch (const nlohmann::json::exception&) {
    fail(Exit::checkpoint,
         "{}: was not written by cleave train: model, sequence length, vocabulary or tokenizer are missing",
         reader.path().string());
  }
  model.vocab = vocab_;
  return model;
}

model::ModelConfig Pretrained::read_published(const PretrainedOptions& o) {
  const model::ModelConfig model = published_config(o.dir);
  published_.emplace(o.dir, model);
  name_ = o.dir, seq_len_ = std::min<int64_t>(2048, model.positions), vocab_ = model.vocab;
  tokenizer_path_ = text::tokenizer_file_in(o.dir);
  return model;
}

void Pretrained::find_tokenizer(const PretrainedOptions& o, bool says) {
  const std::string path = o.tokenizer.empty() ? tokenizer_path_ : o.tokenizer;
  if (path.empty() || (o.tokenizer.empty() && !bytes_ && !std::filesystem::exists(path))) {
    require(!o.needs_tokenizer || !published_, Exit::usage,
            "{}: contains no tokenizer; pass --tokenizer FILE", o.dir);
    require(!o.needs_tokenizer, Exit::usage, "{}: was trained on token ids, and {}; pass --tokenizer FILE",
            o.dir, path.empty() ? "its tokenizer is unknown" : "its tokenizer " + path + " is missing");
    return;
  }
  tokenizer_ = text::open_tokenizer(path);
  require_tokenizer_fits(*tokenizer_, vocab_, "the checkpoint " + o.dir);
  bytes_ = path == "byte";
  if (!bytes_)
    end_tokens_ = end_tokens_in(published_ ? fs::path(o.dir) : named_checkpoint(o.dir, o.tag).folder);
  if (const auto end = tokenizer_->end_of_text(); end && end_tokens_.empty()) end_tokens_ = {*end};
  const std::string digest = digest_of(*tokenizer_);
  if (tokenizer_digest_.empty() || digest == tokenizer_digest_) return;
  const std::string differs =
      fmt::format("the tokenizer {} differs from the checkpoint's tokenizer {}: its ids have other meanings",
                  path, tokenizer_path_);
  require(!o.strict, Exit::usage, "{}", differs);
  if (says) warn("{}", differs);
}

Pretrained::Pretrained(const PretrainedOptions& o, launcher::Job& job) {
  model::require_one_meaning(o.dir);
  std::error_code error;
  require(!fs::exists(fs::path(o.dir) / "config.json", error) || is_published_model(o.dir) ||
              fs::exists(fs::path(o.dir) / "latest", error),
          Exit::checkpoint,
          "{}: contains a config.json, but neither weights (model.safetensors, pytorch_model.bin) nor "
          "checkpoints (file 'latest')",
          o.dir);
  model::ModelConfig model = is_published_model(o.dir) ? read_published(o) : read_checkpoint(o);
  if (o.seq_len > 0) seq_len_ = o.seq_len;
  model.document_mask = o.document_mask;
  find_tokenizer(o, job.first());
  config::DsConfig config = layout_of(o, model, job);
  config.lora = lora_;
  model::check_kernels(model, job.device());
  const int64_t texts = ceil_div(o.texts, runtime::mesh_shape(config, job.info().world).sharers());
  engine_ = std::make_unique<runtime::Engine>(
      config,
      [&](const model::Axes& axes) {
        return model::make_model(model, runtime::model_dtype(config), seq_len_, name_, axes);
      },
      job.connect(config),
      runtime::EngineOptions{
          .limits = memory_limits(o.ranks), .device = job.device(), .inference = true, .texts = texts});
  const auto [folder, tag] = named_checkpoint(o.dir, o.tag);
  if (published_)
    engine_->load_weights([&](const checkpoint::Record& r) { published_->reader().read(r); });
  else
    engine_->load_checkpoint(folder.string(), tag);
  if (!job.first() || o.quiet) return;
  say_layout(*engine_, job);
  if (o.verbose) std::fputs(format(engine_->memory_planned()).c_str(), stderr);
}

}  // namespace cleave::app
