// Reads the folder of one step of a DeepSpeed checkpoint, ZeRO stages 1 to 3 with or without a pipeline, as
// whole tensors: fp32 weights and Adam moments. Runs no code of the files, and reads only the requested
// parts.
#pragma once
#include <memory>
#include <optional>

#include "checkpoint/torch_file.h"
#include "core/range.h"

namespace cleave::checkpoint {

class DeepSpeedCheckpoint {
 public:
  // `dir` is the folder that was passed to DeepSpeed's save_checkpoint; `tag` is a name in it or "latest".
  // Throws Error(checkpoint) if a rank's files are missing, if parts do not add up to the parameters, or if
  // the checkpoint uses an unsupported feature: tensor parallelism, frozen parameters, training without ZeRO.
  DeepSpeedCheckpoint(const std::filesystem::path& dir, const std::string& tag);

  const std::filesystem::path& path() const { return path_; }
  // "master", and for Adam-like optimizers "exp_avg" and "exp_avg_sq".
  std::vector<std::string> kinds() const;
  // Tensors of one kind in fp32, named after the parameters. The checkpoint must outlive the result.
  std::unique_ptr<TensorFile> tensors(const std::string& kind) const;

  std::map<std::string, std::vector<int64_t>> shapes() const;  // of parameters, by name

  // True if a pipeline wrote the checkpoint. Its parameters are named after pipeline layers
  // ("3.mlp.up_proj.weight", "tied_modules.embed.weight"; checkpoint/pipeline_names.h) until rename()
  // replaces all names.
  bool pipeline() const { return stages_.size() > 1 || layers_apart_; }
  void rename(const std::map<std::string, std::string>& names);

  int64_t steps() const { return steps_; }  // including skipped steps
  int64_t skipped() const { return skipped_; }
  int64_t optimizer_steps() const { return optimizer_steps_; }  // counted by the moments

  // Loss scale of fp16; for a dynamic scale (`moves`) also its counters.
  struct LossScale {
    double scale = 1;
    bool moves = false;
    int64_t iteration = 0, last_overflow = -1, hysteresis = 1;
  };
  // Empty if the loss was not scaled, as for bf16 and fp32.
  const std::optional<LossScale>& loss_scale() const { return loss_scale_; }

 private:
  // Elements of one rank's flat tensor; `begin` is their offset in the longer tensor that parts form in
  // order.
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
    int64_t at;      // in the flat tensor
  };
  struct Parameter {
    std::vector<int64_t> shape;
    size_t stage = 0;  // first stage that has it; the copies of a tied parameter are equal
    int64_t numel = 0;
    std::map<std::string, std::vector<Piece>> pieces;  // by kind
  };
  struct Stage {  // of a pipeline; one without a pipeline
    std::unique_ptr<TorchFile> model;
    std::vector<std::unique_ptr<TorchFile>> ranks;  // optimizer states
    std::vector<std::vector<std::string>> groups;   // names of parameters in the order of the flat tensors
  };
  using RankParts = std::vector<std::vector<Part>>;  // flat tensors by rank
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
