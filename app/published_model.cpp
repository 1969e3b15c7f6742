#include "app/published_model.h"

#include <unistd.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "app/adapters.h"
#include "app/model_file.h"
#include "app/tokenizer_files.h"
#include "checkpoint/manifest.h"
#include "checkpoint/removal.h"
#include "core/input_file.h"
#include "core/json.h"
#include "core/json_path.h"
#include "core/printable.h"
#include "core/units.h"
#include "model/config_json.h"
#include "model/family.h"
#include "model/presets.h"
#include "runtime/step/training_state.h"
#include "runtime/weight_names.h"

namespace cleave::app {
namespace fs = std::filesystem;
using nlohmann::json;
namespace {

constexpr const char* kGeneration = "generation_config.json";

// A model as described by a checkpoint.
struct Described {
  std::string name;
  model::ModelConfig model;
  config::LoraConfig lora;
};

Described described_in(const checkpoint::CheckpointReader& reader) {
  try {
    const json client = json::parse(runtime::from_json(reader.state(), reader.path().string()).client);
    Described of{path_from_json(client.at("model").get<std::string>()),
                 model::read_config_json(client.at("config").dump(), reader.path().string()),
                 lora_in(client)};
    of.model.vocab = counted(client.at("vocab"));
    return of;
  } catch (const json::exception&) {
    fail(Exit::checkpoint,
         "{}: contains no model config; only checkpoints of cleave train and import have one",
         reader.path().string());
  }
}

// Returns the config: entries of the published file of the same model, such as token ids, and
// otherwise those of this program.
json config_json_of(const model::ModelConfig& config, const fs::path& kept, DType type) {
  json out = json::parse(model::to_config_json(config));
  std::error_code error;
  if (fs::exists(kept, error)) try {
      const std::string text = model_file_text(kept);
      if (model::read_config_json(text, kept.string()) == config) out = json::parse(text);
    } catch (const Error&) {  // nothing in it is needed
    }
  constexpr std::pair<DType, const char*> types[] = {
      {DType::fp32, "float32"}, {DType::bf16, "bfloat16"}, {DType::fp16, "float16"}};
  out.erase("dtype");
  for (const auto& [known, name] : types)
    if (known == type) out["torch_dtype"] = name;
  out["architectures"] = {config.family->architecture};
  return out;
}

// Requires every parameter in the shape that the config gives, before anything is written.
void require_all(const checkpoint::CheckpointReader& reader, const checkpoint::WeightNames& names) {
  for (const checkpoint::WeightName& w : names.tensors)
    require(reader.shape("master", w.tensor) == w.shape, Exit::checkpoint,
            "{}: weights of {} are missing, or their shape differs from the model", reader.path().string(),
            w.tensor);
}

// Returns true for files that an export writes.
bool is_export_file(std::string_view name) {
  constexpr std::string_view kOthers[] = {"config.json", kGeneration, "adapter_config.json",
                                          "adapter_model.safetensors"};
  const auto is_name = [name](std::string_view own) { return name == own; };
  return checkpoint::is_weights_file(name) || std::ranges::any_of(kOthers, is_name) ||
         std::ranges::any_of(kTokenizerFiles, is_name);
}

// Fills a folder under another name and renames it when complete. An existing folder must be empty,
// or with Replaces::earlier an earlier export; its other files stay.
void make_folder(const fs::path& target, Replaces replaces,
                 const std::function<void(const fs::path&)>& fill) {
  std::error_code error;
  const fs::path whole = fs::weakly_canonical(fs::absolute(target), error);  // target of a link
  const fs::path last = whole.has_filename() ? whole : whole.parent_path();
  const fs::path temporary = last.parent_path() / (".tmp." + last.filename().string());
  checkpoint::require_removed(temporary, is_export_file);
  fs::create_directories(temporary, error);
  require(!error, Exit::checkpoint, "{}: cannot be created: {}", temporary.string(), error.message());
  try {
    fill(temporary);
    if (replaces == Replaces::earlier) {
      for (const std::string& name : checkpoint::others_in(last, is_export_file))
        fs::rename(last / name, temporary / name);
      checkpoint::remove_own(last, is_export_file);
    }
    ::rmdir(last.c_str());  // an empty folder; one that was filled meanwhile stays
    fs::rename(temporary, last, error);
    require(!error, Exit::checkpoint, "{}: cannot be renamed to {}: {}", temporary.string(), last.string(),
            error.message());
  } catch (...) {
    checkpoint::discard_own(temporary, is_export_file);
    throw;
  }
}

// Returns a line that describes the written files.
std::string line_of(const checkpoint::CheckpointReader& reader, const fs::path& target,
                    const checkpoint::WeightNames& names, DType type) {
  int64_t numel = 0;
  for (const checkpoint::WeightName& w : names.tensors) numel += checkpoint::numel_of(w.shape);
  return fmt::format("{}: {} parameters of {} in {}, {}", target.string(), format_count(numel),
                     reader.path().string(), name_of(type), format_bytes(numel * size_of(type)));
}

}  // namespace

PublishedModel::PublishedModel(const fs::path& folder, const model::ModelConfig& config)
    : files_(folder), names_(runtime::weight_names(config, files_)), reader_(files_, names_) {}

PublishedModel::PublishedModel(std::unique_ptr<checkpoint::TensorFile> file, const model::ModelConfig& config)
    : files_(std::move(file)), names_(runtime::weight_names(config, files_)), reader_(files_, names_) {}

std::string PublishedModel::describe() const {
  return fmt::format("{} ({} tensors in {} file{}, {})", folder().string(), names_.tensors.size(),
                     files_.files(), files_.files() == 1 ? "" : "s", reader_.types());
}

CheckpointName named_checkpoint(const std::string& dir, const std::string& tag) {
  std::error_code error;
  fs::path folder = fs::path(dir).lexically_normal();
  if (!folder.has_filename()) folder = folder.parent_path();
  if (folder.filename() == "." || folder.filename() == "..")
    folder = fs::absolute(dir, error).lexically_normal();
  if (!folder.has_filename()) folder = folder.parent_path();
  if (tag != "latest" || !fs::exists(folder / "manifest.json", error)) return {folder, tag};
  return {folder.has_parent_path() ? folder.parent_path() : ".", folder.filename().string()};
}

bool is_published_model(const fs::path& folder) {
  std::error_code error;
  return fs::exists(folder / "config.json", error) && !fs::exists(folder / "latest", error) &&
         !checkpoint::weights_in(folder).empty();
}

fs::path folder_of_weights(const std::string& model) {
  std::error_code error;
  if (model::is_preset(model) || !fs::is_directory(model, error)) return {};
  require(!checkpoint::weights_in(model).empty(), Exit::usage,
          "--model {}: contains a config.json but no weights (model.safetensors, pytorch_model.bin); copy "
          "them there, or pass --init random to start from random weights",
          model);
  return model;
}

std::string describe_random(const std::string& model, uint64_t seed) {
  std::error_code error;
  const fs::path beside = fs::absolute(model, error).parent_path();
  const bool others = !model::is_preset(model) && fs::is_regular_file(model, error) &&
                      !checkpoint::weights_in(beside).empty();
  return fmt::format("random, seed {}{}", seed,
                     others
                         ? fmt::format(" (the weights next to {} are not read; --model {} starts from them)",
                                       model, beside.string())
                         : "");
}

model::ModelConfig published_config(const fs::path& folder) {
  return model::find_model((folder / "config.json").string());
}

void keep_model_files(const fs::path& published, const fs::path& folder) {
  for (const char* name : kTokenizerFiles) keep_file(published / name, folder / name);
  keep_file(published / kGeneration, folder / kGeneration);
  keep_file(published / "config.json", folder / kKeptConfig);
}

std::vector<int32_t> end_tokens_in(const fs::path& folder) {
  std::error_code error;
  const char* config = fs::exists(folder / kKeptConfig, error) ? kKeptConfig : "config.json";
  for (const char* name : {kGeneration, config}) {
    if (!fs::exists(folder / name, error)) continue;
    const json said = parse_json(InputFile((folder / name).string(), Exit::checkpoint).text(),
                                 (folder / name).string(), Exit::checkpoint);
    const json ids = said.is_object() ? said.value("eos_token_id", json()) : json();
    if (ids.is_null()) continue;
    try {
      std::vector<int32_t> tokens;
      for (const json& id : ids.is_array() ? ids : json::array({ids})) tokens.push_back(int32_t(counted(id)));
      return tokens;
    } catch (const json::exception&) {
      fail(Exit::checkpoint,
           "{}: eos_token_id is malformed (got {}, expected a token id or a list of them); "
           "correct it",
           (folder / name).string(), in_quotes(ids.dump()));
    }
  }
  return {};
}

void require_free(const fs::path& target) {
  std::error_code error;
  const bool free =
      !fs::exists(target, error) || (fs::is_directory(target, error) && fs::is_empty(target, error));
  require(free, Exit::usage, "{}: already exists; choose a new or empty folder", target.string());
}

std::string export_checkpoint(const fs::path& folder, const std::string& tag, const fs::path& target,
                              const checkpoint::WeightFormat& format, Replaces replaces) {
  const checkpoint::CheckpointReader reader(folder, tag);
  const Described of = described_in(reader);
  const checkpoint::WeightNames names = runtime::weight_names(of.model);
  require_all(reader, names);
  const MergedWeights merged(reader, of.lora.scale());
  make_folder(target, replaces, [&](const fs::path& temporary) {
    for (const char* name : kTokenizerFiles) keep_file(folder / name, temporary / name);
    keep_file(folder / kGeneration, temporary / kGeneration);
    json described = config_json_of(of.model, folder / kKeptConfig, format.dtype);
    if (!text::tokenizer_file_in(folder.string()).empty() || !fs::exists(folder / kKeptConfig))
      name_special_tokens(temporary, described);
    write_json(temporary / "config.json", described);
    checkpoint::write_weights(temporary, names, format, [&](const checkpoint::Record& r) { merged.read(r); });
  });
  return line_of(reader, target, names, format.dtype);
}

std::string export_adapters(const fs::path& folder, const std::string& tag, const fs::path& target,
                            DType dtype) {
  const checkpoint::CheckpointReader reader(folder, tag);
  const Described of = described_in(reader);
  const checkpoint::WeightNames names = adapter_names(reader, runtime::weight_names(of.model));
  const checkpoint::WeightFormat one_file{.dtype = dtype,
                                          .max_file_size = std::numeric_limits<int64_t>::max()};
  make_folder(target, Replaces::nothing, [&](const fs::path& temporary) {
    write_json(temporary / "adapter_config.json", adapter_config(of.lora, of.model, of.name));
    checkpoint::write_weights(temporary, names, one_file,
                              [&](const checkpoint::Record& r) { reader.read(r); });
    fs::rename(temporary / "model.safetensors", temporary / "adapter_model.safetensors");
  });
  return line_of(reader, target, names, dtype);
}

}  // namespace cleave::app
