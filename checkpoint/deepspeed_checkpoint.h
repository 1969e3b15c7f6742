// The folder of one step that DeepSpeed's ZeRO stages 1 to 3 wrote, as whole tensors: fp32 weights and Adam's
// moments. None of its program runs; nothing but the parts that somebody asks for is read.
#pragma once
#include <memory>
#include <optional>

#include "checkpoint/torch_file.h"
#include "core/range.h"

namespace cleave {

class DeepSpeedCheckpoint {
 public:
  // The folder that save_checkpoint was given, and a name in it, or "latest". Error(checkpoint) for files of
  // ranks that are missing, for parts that do not add up to the parameters, and for what is not read here:
  // pipelines, tensor parallelism, frozen parameters, no ZeRO.
  DeepSpeedCheckpoint(const std::filesystem::path& dir, const std::string& tag);

  const std::filesystem::path& path() const { return path_; }
  // "master", and where the optimizer is Adam or like it "exp_avg" and "exp_avg_sq".
  std::vector<std::string> kinds() const;
  // The tensors of one kind, in fp32, under the names of the parameters. The checkpoint outlives it.
  std::unique_ptr<TensorFile> tensors(const std::string& kind) const;

  int64_t steps() const { return steps_; }  // taken, skipped ones included
  int64_t skipped() const { return skipped_; }
  int64_t optimizer_steps() const { return optimizer_steps_; }  // that the moments saw

 private:
  // Elements of a flat tensor of one rank, which stand in a longer one from `begin` on.
  struct Part {
    const TorchFile* file = nullptr;
    StoredTensor tensor;
    int64_t begin = 0;
    int64_t numel() const { return (tensor.end - tensor.begin) / int64_t(sizeof(float)); }
  };
  struct Piece {  // of a parameter
    const TorchFile* file;
    StoredTensor tensor;
    Range elements;  // of the parameter
    int64_t at;      // of the flat tensor
  };
  struct Parameter {
    std::vector<int64_t> shape;
    int64_t numel = 0;
    std::map<std::string, std::vector<Piece>> pieces;  // by kind
  };
  class Tensors;

  void open_files();
  void read_facts(const Pickled& model);
  void add_kind(const std::string& kind);
  std::optional<std::vector<std::vector<Part>>> parts_of(const std::string& kind) const;  // by rank
  void divide_groups(const std::string& kind, const std::vector<std::vector<Part>>& ranks);
  void divide_parameters(const std::string& kind, const std::vector<std::vector<Part>>& ranks);
  void add_pieces(const std::string& kind, Parameter& p, const std::vector<Part>& parts, int64_t begin,
                  Range elements);
  [[noreturn]] void refuse(const std::string& why) const;

  std::filesystem::path path_;
  std::unique_ptr<TorchFile> model_;
  std::vector<std::unique_ptr<TorchFile>> ranks_;  // their optimizer states
  std::vector<std::vector<std::string>> groups_;  // names of the parameters, in the order of the flat tensors
  std::map<std::string, Parameter> parameters_;
  bool stage3_ = false;
  int64_t steps_ = 0, skipped_ = 0, optimizer_steps_ = 0;
};

}  // namespace cleave
