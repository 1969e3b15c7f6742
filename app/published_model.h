// A model's folder as transformers' save_pretrained writes it: where a training or a checkpoint begins, and
// what an export makes.
#pragma once
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/weight_reader.h"
#include "checkpoint/weight_writer.h"
#include "model/transformer.h"

namespace cleave::app {

// Weights of a folder that belong to a config.
class PublishedModel {
 public:
  // Error(checkpoint) for weights that are not all there, or not those of the config; nothing but headers is
  // read.
  PublishedModel(const std::filesystem::path& folder, const model::ModelConfig& config);
  // The same of one file that is open.
  PublishedModel(std::unique_ptr<checkpoint::TensorFile> file, const model::ModelConfig& config);

  const std::filesystem::path& folder() const { return files_.folder(); }
  const checkpoint::WeightNames& names() const { return names_; }
  const checkpoint::WeightReader& reader() const { return reader_; }
  // "/models/llama (291 tensors in 4 files, bf16)"
  std::string describe() const;

 private:
  checkpoint::WeightFiles files_;
  checkpoint::WeightNames names_;
  checkpoint::WeightReader reader_;
};

// Which checkpoint a command means: one of a folder of them or, where `dir` is a checkpoint itself, that one.
struct CheckpointName {
  std::filesystem::path folder;
  std::string tag;
};
CheckpointName named_checkpoint(const std::string& dir, const std::string& tag);

// Whether the folder is a published model, with its weights, and no folder of checkpoints.
bool is_published_model(const std::filesystem::path& folder);
// Where the weights are that a training of this --model begins with: empty for a preset and for a file.
// Error(usage) for a folder without weights: nobody who names one wants random ones unless he says so.
std::filesystem::path folder_of_weights(const std::string& model);
// What a line says of weights that are drawn: the seed, and that those beside a config.json are not read.
std::string describe_random(const std::string& model, uint64_t seed);
// The model of its config.json. Error(usage).
model::ModelConfig published_config(const std::filesystem::path& folder);

// Copies what belongs to a published model beside its weights, as far as it is there: the tokenizer's files,
// generation_config.json, and config.json under a name of its own, so that no folder of checkpoints looks
// like a model without weights. Error(checkpoint) for a file that cannot be copied.
void keep_model_files(const std::filesystem::path& published, const std::filesystem::path& folder);

// The tokens with which the model of a folder, published or of checkpoints, ends a text: eos_token_id of
// generation_config.json, or of config.json. None: neither says.
std::vector<int32_t> end_tokens_in(const std::filesystem::path& folder);

// Error(usage) where there is anything that an export to this folder would overwrite.
void require_free(const std::filesystem::path& target);

// Whether an export may take the place of an earlier one, in a folder that only exports write to.
enum class Replaces { nothing, earlier };
// A folder for transformers from a folder of checkpoints: weights, with adapters added to them, config.json,
// and what keep_model_files left. Made under another name and renamed when it is whole, over
// nothing but an empty folder; at most pieces of tensors are in memory. Returns a line that says what was
// written. Error(checkpoint) otherwise.
std::string export_checkpoint(const std::filesystem::path& folder, const std::string& tag,
                              const std::filesystem::path& target, const checkpoint::WeightFormat& format,
                              Replaces replaces = Replaces::nothing);
// The same for peft, of the checkpoint's adapters alone: adapter_model.safetensors and adapter_config.json.
std::string export_adapters(const std::filesystem::path& folder, const std::string& tag,
                            const std::filesystem::path& target, DType dtype);

}  // namespace cleave::app
