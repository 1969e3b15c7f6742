// The folder of one step that DeepSpeed's ZeRO stages 1 to 3 wrote, with or without a pipeline, as whole
// tensors: fp32 weights and Adam's moments. None of its program runs; nothing but the parts that somebody
// asks for is read.
#pragma once
#include <memory>
#include <optional>

#include "checkpoint/torch_file.h"
#include "core/range.h"

namespace cleave::checkpoint {

class DeepSpeedCheckpoint {
 public:
  // The folder that save_checkpoint was given, and a name in it, or "latest". Error(checkpoint) for files of
  // ranks that are missing, for parts that do not add up to the parameters, and for what is not read here:
  // tensor parallelism, frozen parameters, no ZeRO.
  DeepSpeedCheckpoint(const std::filesystem::path& dir, const std::string& tag);

  const std::filesystem::path& path() const { return path_; }
  // "master", and where the optimizer is Adam or like it "exp_avg" and "exp_avg_sq".
  std::vector<std::string> kinds() const;
  // The tensors of one kind, in fp32, under the names of the parameters. The checkpoint outlives it.
  std::unique_ptr<TensorFile> tensors(const std::string& kind) const;

  std::map<std::string, std::vector<int64_t>> shapes() const;  // of the parameters, by name

  // Whether a pipeline wrote it. Its parameters are called after the pipeline's layers
  // ("3.mlp.up_proj.weight", "tied_modules.embed.weight"; checkpoint/pipeline_names.h) until rename() gives
  // all of them other names.
  bool pipeline() const { return stages_.size() > 1 || layers_apart_; }
  void rename(const std::map<std::string, std::string>& names);

  int64_t steps() const { return steps_; }  // taken, skipped ones included
  int64_t skipped() const { return skipped_; }
  int64_t optimizer_steps() const { return optimizer_steps_; }  // that the moments saw

  // What the loss of fp16 was multiplied with, and of a scale that moves what moves it.
  struct LossScale {
    double scale = 1;
    bool moves = false;
    int64_t iteration = 0, last_overflow = -1, hysteresis = 1;
  };
  // None where the loss was multiplied with 1, as in other types than fp16.
  const std::optional<LossScale>& loss_scale() const { return loss_scale_; }

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
    size_t stage = 0;  // the first that has it; a tied one is on several, and the same there
    int64_t numel = 0;
    std::map<std::string, std::vector<Piece>> pieces;  // by kind
  };
  struct Stage {  // of a pipeline; the only one where there is none
    std::unique_ptr<TorchFile> model;
    std::vector<std::unique_ptr<TorchFile>> ranks;  // their optimizer states
    std::vector<std::vector<std::string>> groups;   // names of parameters, in the order of the flat tensors
  };
  using RankParts = std::vector<std::vector<Part>>;  // by rank, the flat tensors
  class Tensors;

  void open_files();
  Stage open_stage(int index) const;
  void read_facts(const Pickled& model);
  void read_parameters(size_t stage);
  void add_kind(const std::string& kind);
  std::optional<RankParts> parts_of(const std::string& kind, const Stage& stage) const;
  void divide_groups(const std::string& kind, size_t stage, const RankParts& ranks);
  void divide_parameters(const std::string& kind, size_t stage, const RankParts& ranks);
  void read_optimizer_steps();
  void read_loss_scale();
  void add_pieces(const std::string& kind, Parameter& p, const std::vector<Part>& parts, int64_t begin,
                  Range elements);
  [[noreturn]] void refuse(const std::string& why) const;

  std::filesystem::path path_;
  std::vector<Stage> stages_;
  std::map<std::string, Parameter> parameters_;
  bool stage3_ = false, layers_apart_ = false;
  int64_t steps_ = 0, skipped_ = 0, optimizer_steps_ = 0;
  std::optional<LossScale> loss_scale_;
};

}  // namespace cleave::checkpoint
