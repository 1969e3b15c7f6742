// Model folders in the format of transformers' save_pretrained: start of a training or checkpoint,
// and result of an export.
#pragma once
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/weight_reader.h"
#include "checkpoint/weight_writer.h"
#include "model/transformer.h"

namespace cleave::app {

// Weights of a folder that match a config.
class PublishedModel {
 public:
  // Reads headers only. Error(checkpoint) for missing weights or weights that do not match the
  // config.
  PublishedModel(const std::filesystem::path& folder, const model::ModelConfig& config);
  // Uses one open file.
  PublishedModel(std::unique_ptr<checkpoint::TensorFile> file, const model::ModelConfig& config);

  const std::filesystem::path& folder() const { return files_.folder(); }
  const checkpoint::WeightNames& names() const { return names_; }
  const checkpoint::WeightReader& reader() const { return reader_; }
  // Returns, for example, "/models/llama (291 tensors in 4 files, bf16)".
  std::string describe() const;

 private:
  checkpoint::WeightFiles files_;
  checkpoint::WeightNames names_;
  checkpoint::WeightReader reader_;
};

// A checkpoint as a command names it: a folder of checkpoints and a tag, or the checkpoint `dir`
// itself.
struct CheckpointName {
  std::filesystem::path folder;
  std::string tag;
};
CheckpointName named_checkpoint(const std::string& dir, const std::string& tag);

// Returns true for a published model with weights that is not a folder of checkpoints.
bool is_published_model(const std::filesystem::path& folder);
// Returns the folder of weights that a training of this --model starts with; empty for a preset or
// a file. Error(usage) for a folder without weights, because random weights must be requested
// explicitly.
std::filesystem::path folder_of_weights(const std::string& model);
// Returns the line for random weights: the seed, and that weights next to a config.json are
// ignored.
std::string describe_random(const std::string& model, uint64_t seed);
// Reads the model of config.json. Error(usage).
model::ModelConfig published_config(const std::filesystem::path& folder);

// Copies the files next to a published model's weights, if they exist: tokenizer files,
// generation_config.json, and config.json under another name, so that a folder of checkpoints does
// not look like a model without weights. Error(checkpoint) for a file that cannot be copied.
void keep_model_files(const std::filesystem::path& published, const std::filesystem::path& folder);

// Returns the tokens that end a text for the model of a published or checkpoint folder:
// eos_token_id of generation_config.json or of config.json. Empty without one.
std::vector<int32_t> end_tokens_in(const std::filesystem::path& folder);

// Error(usage) if an export to this folder would overwrite something.
void require_free(const std::filesystem::path& target);

// States if an export may replace an earlier one, in a folder that only exports write to.
enum class Replaces { nothing, earlier };
// Writes a transformers folder from a folder of checkpoints: weights with merged adapters,
// config.json, and the files of keep_model_files(). Written under another name and renamed when
// complete, over at most an empty folder; memory holds pieces of tensors only. Returns a line that
// describes the result. Error(checkpoint) otherwise.
std::string export_checkpoint(const std::filesystem::path& folder, const std::string& tag,
                              const std::filesystem::path& target, const checkpoint::WeightFormat& format,
                              Replaces replaces = Replaces::nothing);
// Writes the checkpoint's adapters alone for peft: adapter_model.safetensors and
// adapter_config.json.
std::string export_adapters(const std::filesystem::path& folder, const std::string& tag,
                            const std::filesystem::path& target, DType dtype);

}  // namespace cleave::app
