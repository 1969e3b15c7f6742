// A training that was saved, by this program, by a script on its engine or by DeepSpeed: named tensors of
// each kind, under the names that its reader has for them, and where the training was.
#pragma once
#include <filesystem>
#include <map>
#include <memory>
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

// Where a training of DeepSpeed's was.
Restored restored_from(const checkpoint::DeepSpeedCheckpoint& saved);

class SavedTraining {
 public:
  // tag may be "latest". Tensors have the names of whoever wrote them. Error(checkpoint) as CheckpointReader
  // and DeepSpeedCheckpoint.
  SavedTraining(const std::filesystem::path& dir, const std::string& tag);
  ~SavedTraining();
  SavedTraining(SavedTraining&&) noexcept;

  const std::filesystem::path& path() const;
  const Restored& state() const { return state_; }  // imported: of DeepSpeed's, too
  bool by_deepspeed() const { return deepspeed_ != nullptr; }

  // Names tensors, and lays matrices, as transformers does from here on; a change only where cleave train or
  // cleave import wrote it, which say what their model is.
  void as_published();
  // Names and lays them as the layers of this model do; a change only where others wrote it, with the names
  // of transformers.
  void as_layers_of(const model::ModelConfig& config);
  // After as_published(): what else a published model calls one of its tensors, and that tensor.
  const std::vector<std::pair<std::string, std::string>>& tied() const { return tied_; }

  struct Stored {  // of a tensor
    std::string name;
    bool transposed = false;
    std::vector<int64_t> shape = {};  // as its reader has it
  };
  std::vector<std::string> kinds() const;
  // The tensors of a kind that there is, by name.
  const std::map<std::string, Stored>& tensors(const std::string& kind) const;
  bool has(const std::string& kind, const std::string& tensor) const;

  // Writes records in this order, transposed ones last. Error(checkpoint), before the first is written, for
  // tensors that there are not, with the names of some that there are; and as CheckpointReader::read.
  void read(std::span<const checkpoint::Record> records) const;
  // A whole tensor, which has as many elements as there is room.
  void read_whole(const std::string& kind, const std::string& tensor, std::span<float> to) const;

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
  std::map<std::string, std::unique_ptr<checkpoint::TensorFile>> files_;  // DeepSpeed's, by kind
  std::map<std::string, Table> tables_;                                   // by kind
  std::vector<std::pair<std::string, std::string>> tied_;
  Restored state_;
};

}  // namespace cleave::runtime
