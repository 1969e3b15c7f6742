// A saved training, written by this program, by a script on its engine or by DeepSpeed: named tensors of each
// kind, under the names of its reader, and the training position.
#pragma once
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "model/transformer.h"
#include "runtime/step/training_state.h"

namespace cleave::checkpoint {
class DeepSpeedCheckpoint;  // checkpoint/deepspeed_checkpoint.h
class TensorFile;           // checkpoint/tensor_file.h
}  // namespace cleave::checkpoint

namespace cleave::runtime {

// Returns the position of a DeepSpeed training.
Restored restored_from(const checkpoint::DeepSpeedCheckpoint& saved);

class SavedTraining {
 public:
  // tag may be "latest". Tensors have the names of the program that wrote them. Throws Error(checkpoint) as
  // CheckpointReader and DeepSpeedCheckpoint do.
  SavedTraining(const std::filesystem::path& dir, const std::string& tag);
  ~SavedTraining();
  SavedTraining(SavedTraining&&) noexcept;

  const std::filesystem::path& path() const;
  const Restored& state() const { return state_; }  // imported: also set for DeepSpeed
  bool by_deepspeed() const { return deepspeed_ != nullptr; }

  // Switches to the tensor names and matrix layout of transformers. Has an effect only if cleave train or
  // cleave import wrote the training, because these describe their model.
  void as_published();
  // Switches to the names and layout of this model's layers. Has an effect only if another program wrote the
  // training, with the names of transformers.
  void as_layers_of(const model::ModelConfig& config);
  // After as_published(): pairs of the additional name of a shared tensor in a published model, and the
  // tensor.
  const std::vector<std::pair<std::string, std::string>>& tied() const { return tied_; }

  struct Stored {  // stored tensor
    std::string name;
    bool transposed = false;
    std::vector<int64_t> shape = {};  // as its reader sees it
  };
  std::vector<std::string> kinds() const;
  // Returns the stored tensors of a kind, by name.
  const std::map<std::string, Stored>& tensors(const std::string& kind) const;
  bool has(const std::string& kind, const std::string& tensor) const;

  // Reads the records in this order, transposed ones last. Throws Error(checkpoint) for missing tensors
  // before the first record is read, with some existing names; otherwise as CheckpointReader::read.
  void read(std::span<const checkpoint::Record> records) const;
  // Reads a whole tensor; `to` must have its number of elements.
  void read_whole(const std::string& kind, const std::string& tensor, std::span<float> to) const;
  // Reads a tensor of UnitOptions::bytes; `to` must have its size.
  void read_bytes(const std::string& tensor, std::span<std::byte> to) const;

 private:
  using Record = checkpoint::Record;
  using Table = std::map<std::string, Stored>;

  void open_own(const std::filesystem::path& dir, const std::string& tag);
  void open_deepspeed(const std::filesystem::path& dir, const std::string& tag);
  void call(const Table& names);
  bool of_the_trainer() const;
  model::ModelConfig model() const;
  void require_stored(std::span<const Record> records) const;
  [[noreturn]] void refuse_names(std::span<const Record> records, const Record& first) const;
  void read_plain(std::span<const Record> records) const;
  void read_transposed(const Record& record, const Stored& stored) const;

  std::unique_ptr<checkpoint::CheckpointReader> own_;
  std::unique_ptr<checkpoint::DeepSpeedCheckpoint> deepspeed_;
  std::map<std::string, std::unique_ptr<checkpoint::TensorFile>> files_;  // for DeepSpeed, by kind
  std::map<std::string, Table> tables_;                                   // by kind
  std::vector<std::pair<std::string, std::string>> tied_;
  Restored state_;
};

}  // namespace cleave::runtime
