#include "checkpoint/deepspeed_checkpoint.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "checkpoint/checkpoint.h"
#include "checkpoint/manifest.h"
#include "core/json.h"
#include "core/printable.h"

namespace cleave::checkpoint {
namespace {

// DeepSpeed files contain objects of DeepSpeed classes, NumPy, torch and argparse. Only their attributes are
// read.
bool may_stand(const std::string& name) {
  return name.starts_with("deepspeed.") || name == "argparse.Namespace" || name.starts_with("numpy.") ||
         name.starts_with("torch.");
}

const Pickled* within(const Pickled* dict, std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names) dict = dict ? dict->find(name) : nullptr;
  return dict;
}

bool holds_something(const Pickled* container) { return container && !container->items.empty(); }

int64_t count_in(const Pickled& dict, std::string_view name) {
  const Pickled* value = dict.find(name);
  return value && value->kind == Pickled::Kind::integer && value->integer >= 0 ? value->integer : 0;
}

int64_t padding_of(const Pickled& number) {
  constexpr int64_t kMost = 1 << 20;
  require(number.kind == Pickled::Kind::integer && 0 <= number.integer && number.integer <= kMost,
          Exit::checkpoint, "param_alignment_paddings: contains an invalid padding");
  return number.integer;
}

std::string optimizer_file(const std::filesystem::path& folder, int stage, int rank) {
  for (const char* prefix : {"bf16_", ""}) {
    std::string name = fmt::format("{}zero_pp_rank_{}_mp_rank_{:02}_optim_states.pt", prefix, rank, stage);
    if (std::error_code error; std::filesystem::exists(folder / name, error)) return name;
  }
  return {};
}

}  // namespace

// One kind of values of all parameters, presented as a file.
class DeepSpeedCheckpoint::Tensors final : public TensorFile {
 public:
  Tensors(const DeepSpeedCheckpoint& from, std::string kind) : from_(from), kind_(std::move(kind)) {
    for (const auto& [name, p] : from.parameters_)
      tensors_[name] = {DType::fp32, p.shape, 0, p.numel * int64_t(sizeof(float))};
  }
  const std::map<std::string, StoredTensor>& tensors() const override { return tensors_; }
  const std::filesystem::path& path() const override { return from_.path(); }
  void read(const std::string& name, int64_t begin, std::span<std::byte> bytes) const override {
    const int64_t size = sizeof(float);
    CHECK(begin % size == 0 && int64_t(bytes.size()) % size == 0, "{}: only a part of a number of {}",
          path().string(), name);
    const Range wanted{begin / size, (begin + int64_t(bytes.size())) / size};
    for (const Piece& p : from_.parameters_.at(name).pieces.at(kind_)) {
      const Range both = intersect(wanted, p.elements);
      if (both.empty()) continue;
      p.file->read(p.tensor, (p.at + both.begin - p.elements.begin) * size,
                   bytes.subspan(size_t((both.begin - wanted.begin) * size), size_t(both.size() * size)));
    }
  }

 private:
  const DeepSpeedCheckpoint& from_;
  std::string kind_;
  std::map<std::string, StoredTensor> tensors_;
};

DeepSpeedCheckpoint::DeepSpeedCheckpoint(const std::filesystem::path& dir, const std::string& tag) {
  const std::string name = tag == "latest" ? latest_checkpoint(dir) : tag;
  require(is_plain_name(name), Exit::checkpoint, "{}: is not the name of a checkpoint in {}", in_quotes(name),
          dir.string());
  path_ = dir / name;
  open_files();
  for (size_t stage = 0; stage < stages_.size(); ++stage) read_parameters(stage);
  for (const char* kind : {"master", "exp_avg", "exp_avg_sq"}) add_kind(kind);
  read_optimizer_steps();
  read_loss_scale();
}

void DeepSpeedCheckpoint::refuse(const std::string& why) const {
  fail(Exit::checkpoint, "{}: cannot be read as a DeepSpeed checkpoint: {}", path_.string(), why);
}

void DeepSpeedCheckpoint::open_files() {
  std::error_code error;
  const auto there = [&](const char* file) { return std::filesystem::exists(path_ / file, error); };
  layers_apart_ = there("layer_00-model_states.pt") || there("layer_01-model_states.pt") ||
                  there("layer_00-model_00-model_states.pt");
  if (there("layer_00-model_01-model_states.pt") ||
      (!layers_apart_ &&
       (there("mp_rank_01_model_states.pt") || there("zero_pp_rank_0_mp_rank_01_model_states.pt"))))
    refuse("tensor-parallel checkpoints are not supported");
  stages_.push_back(open_stage(0));
  const Pickled& model = stages_[0].model->root();
  read_facts(model);
  const int64_t stages = layers_apart_ ? count_in(model, "mp_world_size") : 1;
  if (stages < 1 || stages > 1000) refuse("the number of stages (mp_world_size) is missing");
  for (int stage = 1; stage < int(stages); ++stage) stages_.push_back(open_stage(stage));
  stage3_ = within(&stages_[0].ranks[0]->root(), {"optimizer_state_dict", "fp32_flat_groups"}) != nullptr;
}

DeepSpeedCheckpoint::Stage DeepSpeedCheckpoint::open_stage(int index) const {
  std::error_code error;
  const auto there = [&](const std::string& file) { return std::filesystem::exists(path_ / file, error); };
  Stage stage;
  std::string model = fmt::format("mp_rank_{:02}_model_states.pt", index);
  if (!there(model)) model = fmt::format("zero_pp_rank_0_mp_rank_{:02}_model_states.pt", index);
  if (!there(model))
    refuse(fmt::format("mp_rank_{:02}_model_states.pt is missing, and so is the file of stage 3", index));
  if (optimizer_file(path_, index, 0).empty())
    refuse(
        fmt::format("zero_pp_rank_0_mp_rank_{:02}_optim_states.pt is missing; only checkpoints of ZeRO "
                    "stages 1 to 3 are supported",
                    index));
  stage.model = std::make_unique<TorchFile>(path_ / model, may_stand);
  const int64_t world = count_in(stage.model->root(), "dp_world_size");
  if (world < 1 || world > 100'000) refuse("the number of ranks (dp_world_size) is missing");
  for (int rank = 0; rank < int(world); ++rank) {
    const std::string file = optimizer_file(path_, index, rank);
    if (file.empty())
      refuse(fmt::format(
          "{} ranks wrote it, but the file of rank {}, [bf16_]zero_pp_rank_{}_mp_rank_{:02}_optim_states.pt, "
          "is missing; copy the files of all nodes into the folder",
          world, rank, rank, index));
    stage.ranks.push_back(std::make_unique<TorchFile>(path_ / file, may_stand));
  }
  return stage;
}

void DeepSpeedCheckpoint::read_facts(const Pickled& model) {
  steps_ = count_in(model, "global_steps"), skipped_ = count_in(model, "skipped_steps");
  if (skipped_ > steps_ || steps_ > kMostCounted)
    refuse(fmt::format("it skipped {} of {} steps", skipped_, steps_));
  const Pickled* cut = within(&model, {"checkpoint_parallel_dimensions", "tp_degree"});
  if (cut && cut->integer > 1) refuse("tensor-parallel checkpoints are not supported");
}

void DeepSpeedCheckpoint::read_parameters(size_t stage) {
  const Pickled& model = stages_[stage].model->root();
  if (holds_something(model.find("frozen_param_shapes"))) refuse("frozen parameters are not supported");
  const Pickled* groups = model.find("param_shapes");
  if (!groups || groups->kind != Pickled::Kind::list) refuse("the list param_shapes is missing");
  constexpr int64_t kMostElements = INT64_MAX / 16;
  int64_t all = 0;
  for (const Pickled* group : groups->items) {
    std::vector<std::string>& names = stages_[stage].groups.emplace_back();
    if (group->kind != Pickled::Kind::dict) refuse("a group of param_shapes is not a dict");
    for (size_t i = 0; i + 1 < group->items.size(); i += 2) {
      const Pickled &name = *group->items[i], &shape = *group->items[i + 1];
      Parameter p;
      p.stage = stage;
      if (shape.items.size() > kMostDims) refuse(in_quotes(name.text) + " has an impossible shape");
      for (const Pickled* d : shape.items) {
        if (d->kind != Pickled::Kind::integer || d->integer < 0) refuse("a shape has invalid sizes");
        p.shape.push_back(d->integer);
      }
      p.numel = numel_of(p.shape);
      if (__builtin_add_overflow(all, p.numel, &all) || all > kMostElements)
        refuse("the parameters have impossibly many elements");
      const std::vector<int64_t> its = p.shape;
      const auto [at, added] = parameters_.emplace(name.text, std::move(p));
      const bool tied = at->second.stage < stage && at->second.shape == its;
      if (name.kind != Pickled::Kind::text || !(added || tied))
        refuse("param_shapes contains a duplicate or unnamed parameter");
      names.push_back(name.text);
    }
  }
}

// Empty if the optimizer has no such state.
std::optional<DeepSpeedCheckpoint::RankParts> DeepSpeedCheckpoint::parts_of(const std::string& kind,
                                                                            const Stage& stage) const {
  RankParts all;
  for (const auto& rank : stage.ranks) {
    const Pickled* optimizer = rank->root().find("optimizer_state_dict");
    std::vector<const Pickled*> flat;
    if (kind == "master") {
      const Pickled* groups =
          within(optimizer, {stage3_ ? "fp32_flat_groups" : "single_partition_of_fp32_groups"});
      if (!groups || groups->kind != Pickled::Kind::list)
        refuse(rank->path().filename().string() + " contains no fp32 weights");
      flat = groups->items;
    } else {
      const Pickled* states =
          within(optimizer, {stage3_ ? "optimizer_state_dict" : "base_optimizer_state", "state"});
      if (!states || states->kind != Pickled::Kind::dict) return {};
      for (size_t i = 0; i + 1 < states->items.size(); i += 2) {
        const Pickled* state = states->items[i + 1]->find(kind);
        if (!state) return {};
        if (states->items[i]->kind != Pickled::Kind::integer || states->items[i]->integer != int64_t(i / 2))
          refuse(rank->path().filename().string() +
                 ": the optimizer state and its groups have different orders");
        flat.push_back(state);
      }
    }
    std::vector<Part>& parts = all.emplace_back();
    int64_t at = 0;
    for (const Pickled* tensor : flat) {
      parts.push_back({rank.get(), rank->locate(*tensor, kind), at});
      if (parts.back().tensor.dtype != DType::fp32)
        refuse(fmt::format("{}: {} has the wrong type (got {}, expected fp32)",
                           rank->path().filename().string(), kind, name_of(parts.back().tensor.dtype)));
      at += parts.back().numel();
    }
  }
  return all;
}

void DeepSpeedCheckpoint::add_kind(const std::string& kind) {
  for (size_t stage = 0; stage < stages_.size(); ++stage) {
    const auto ranks = parts_of(kind, stages_[stage]);
    if (!ranks) return;
    (stage3_ ? divide_parameters(kind, stage, *ranks) : divide_groups(kind, stage, *ranks));
  }
  for (const auto& [name, p] : parameters_) {
    int64_t found = 0;
    if (const auto at = p.pieces.find(kind); at != p.pieces.end())
      for (const Piece& piece : at->second) found += piece.elements.size();
    if (found != p.numel)
      refuse(fmt::format("only {} of {} elements of {} of {} exist", found, p.numel, kind, name));
  }
}

// Reads Adam's step count, which its bias correction uses.
void DeepSpeedCheckpoint::read_optimizer_steps() {
  const TorchFile& rank = *stages_[0].ranks[0];
  const Pickled* states =
      within(&rank.root(),
             {"optimizer_state_dict", stage3_ ? "optimizer_state_dict" : "base_optimizer_state", "state"});
  if (!states || states->items.size() < 2 || !states->items[1]->find("exp_avg")) return;
  const Pickled* step = states->items[1]->find("step");
  optimizer_steps_ = steps_ - skipped_;
  if (step && step->kind == Pickled::Kind::integer) optimizer_steps_ = std::max<int64_t>(0, step->integer);
  if (step && step->kind == Pickled::Kind::tensor) {
    const StoredTensor t = rank.locate(*step, "step");
    float value = 0;
    if (t.dtype != DType::fp32 || t.end - t.begin != sizeof value)
      refuse("the step of the optimizer is not a number");
    rank.read(t, 0, std::as_writable_bytes(std::span(&value, 1)));
    optimizer_steps_ = value >= 0 && value < 0x1p24f ? int64_t(value) : 0;
  }
}

// Reads rank 0 only: all ranks have the same loss scale.
void DeepSpeedCheckpoint::read_loss_scale() {
  const Pickled* scaler = within(&stages_[0].ranks[0]->root(), {"optimizer_state_dict", "loss_scaler"});
  const auto number = [&](const char* name) {
    const Pickled* value = scaler->find(name);
    const bool whole = value && value->kind == Pickled::Kind::integer && value->text.empty();
    if (!whole && !(value && value->kind == Pickled::Kind::number))
      refuse(fmt::format("the loss scaler {} has no number {}", in_quotes(scaler->text, 100), name));
    return whole ? double(value->integer) : value->number;
  };
  const auto count = [&](const char* name) {
    const double value = number(name);
    if (!(std::fabs(value) <= double(kMostCounted)))
      refuse(fmt::format("the loss scaler has an invalid value (got {} for {})", value, name));
    return int64_t(value);
  };
  if (!scaler || scaler->kind != Pickled::Kind::object) return;
  LossScale found{.scale = number("cur_scale"), .moves = scaler->text.ends_with(".DynamicLossScaler")};
  if (!std::isfinite(found.scale) || found.scale <= 0)
    refuse(fmt::format("the loss scaler has an invalid scale (got {})", found.scale));
  if (found.moves) {
    found.iteration = std::max<int64_t>(0, count("cur_iter")),
    found.last_overflow = count("last_overflow_iter");
    found.hysteresis = count("cur_hysteresis");
  }
  if (found.moves || found.scale != 1) loss_scale_ = found;
}

std::map<std::string, std::vector<int64_t>> DeepSpeedCheckpoint::shapes() const {
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const auto& [name, p] : parameters_) shapes[name] = p.shape;
  return shapes;
}

void DeepSpeedCheckpoint::rename(const std::map<std::string, std::string>& names) {
  std::map<std::string, Parameter> renamed;
  for (auto& [name, parameter] : parameters_) renamed[names.at(name)] = std::move(parameter);
  parameters_ = std::move(renamed);
}

// Stages 1 and 2: a group's parts, concatenated over ranks, are its parameters, concatenated.
void DeepSpeedCheckpoint::divide_groups(const std::string& kind, size_t stage, const RankParts& ranks) {
  const auto& groups = stages_[stage].groups;
  const Pickled* paddings =
      within(&stages_[stage].ranks[0]->root(), {"optimizer_state_dict", "param_alignment_paddings"});
  for (size_t g = 0; g < groups.size(); ++g) {
    std::vector<Part> parts;
    int64_t at = 0;
    for (const std::vector<Part>& rank : ranks) {
      if (rank.size() != groups.size()) refuse("the groups of the ranks differ from param_shapes");
      parts.push_back(rank[g]);
      parts.back().begin = at, at += rank[g].numel();
    }
    int64_t begin = 0;
    for (size_t i = 0; i < groups[g].size(); ++i) {
      Parameter& p = parameters_.at(groups[g][i]);
      if (p.stage == stage) add_pieces(kind, p, parts, begin, {0, p.numel});
      begin += p.numel;
      if (paddings && g < paddings->items.size() && i < paddings->items[g]->items.size())
        begin += padding_of(*paddings->items[g]->items[i]);
    }
    // DeepSpeed aligns a group to twice the number of ranks, so that padding is smaller than this.
    const int64_t slack = at - begin;
    if (slack < 0 || slack >= 2 * int64_t(ranks.size()))
      refuse(fmt::format("{} elements of {} in group {} do not match its parameters (expected {})", at, kind,
                         g, begin));
  }
}

// Stage 3: every parameter is cut into one equal part per rank; the last parts are padded.
void DeepSpeedCheckpoint::divide_parameters(const std::string& kind, size_t stage, const RankParts& ranks) {
  int64_t begin = 0;
  for (const std::vector<std::string>& names : stages_[stage].groups)
    for (const std::string& name : names) {
      Parameter& p = parameters_.at(name);
      for (size_t r = 0; r < ranks.size() && p.stage == stage; ++r)
        add_pieces(kind, p, ranks[r], begin, part(p.numel, int64_t(ranks.size()), int64_t(r)));
      begin += ceil_div(p.numel, int64_t(ranks.size()));
    }
  for (const std::vector<Part>& rank : ranks)
    if (rank.empty() || rank.back().begin + rank.back().numel() != begin)
      refuse(fmt::format("a rank does not have {} elements of {} for its parameters", begin, kind));
}

// Adds the pieces of a parameter that starts at element `begin` of the concatenated parts.
void DeepSpeedCheckpoint::add_pieces(const std::string& kind, Parameter& p, const std::vector<Part>& parts,
                                     int64_t begin, Range elements) {
  std::vector<Piece>& pieces = p.pieces[kind];
  const Range wanted = Range{0, elements.size()}.shifted(begin);
  for (const Part& part : parts) {
    const Range both = intersect(wanted, Range{0, part.numel()}.shifted(part.begin));
    if (!both.empty())
      pieces.push_back(
          {part.file, part.tensor, both.shifted(elements.begin - begin), both.begin - part.begin});
  }
}

std::vector<std::string> DeepSpeedCheckpoint::kinds() const {
  std::vector<std::string> kinds{"master"};
  if (parameters_.empty()) return kinds;
  const auto& there = parameters_.begin()->second.pieces;
  if (there.contains("exp_avg") && there.contains("exp_avg_sq"))
    kinds.insert(kinds.end(), {"exp_avg", "exp_avg_sq"});
  return kinds;
}

std::unique_ptr<TensorFile> DeepSpeedCheckpoint::tensors(const std::string& kind) const {
  return std::make_unique<Tensors>(*this, kind);
}

}  // namespace cleave::checkpoint
