#include "runtime/stage/pipeline_cut.h"

#include <algorithm>

#include "pipeline/schedule_file.h"

namespace cleave::runtime {
namespace {

double params_of(const std::vector<UnitSpec>& units) {
  double sum = 0;
  for (const UnitSpec& u : units)
    for (const ParamSpec& p : u.params) sum += double(p.whole_numel());
  return sum;
}

// Counts the bytes that one forward and backward reads or writes: parameters, input and output, three times
// each.
pipeline::LayerCost cost_of(std::string name, const std::vector<UnitSpec>& units, double flops,
                            double boundary_numel, DType dtype) {
  const double params = params_of(units);
  return {std::move(name), int64_t(params), flops, 3 * double(size_of(dtype)) * (params + boundary_numel)};
}

struct Costs {
  std::vector<pipeline::LayerCost> layers;
  pipeline::LayerCost head;
};

Costs costs_of(const model::Model& model, int64_t samples) {
  Costs costs;
  model::TensorSpec in = model.input(samples);
  for (const auto& layer : model.layers) {
    const model::TensorSpec out = layer->output(in);
    const auto units = layer->units();
    costs.layers.push_back(cost_of(model.layer_name(int(costs.layers.size())), units, layer->flops(in),
                                   double(in.shape.numel() + out.shape.numel()), model.dtype));
    costs.layers.back().splits = layer->splits_backward();
    in = out;
  }
  const auto units = model.head->units();
  const double rows = double(samples * model.rows_per_sample);
  // Products with the classes, once forward and twice backward, once if frozen; logits are written and read
  // in fp32.
  const bool frozen = std::ranges::all_of(units, [](const UnitSpec& u) { return u.frozen; });
  costs.head = cost_of("head", units, (frozen ? 4 : 6) * rows * params_of(units),
                       double(in.shape.numel()) + rows * double(model.head->classes()), model.dtype);
  return costs;
}

bool splits(const pipeline::InstructionList& list) {
  return std::any_of(list.begin(), list.end(),
                     [](const pipeline::Instruction& i) { return i.op == pipeline::Op::backward_weight; });
}

StageShape stage_of(const PipelineCut& cut, const pipeline::Simulation& train,
                    const pipeline::Simulation& evaluation, const config::CheckpointingConfig& kept,
                    const Recompute& recompute, bool trains, int rank) {
  const pipeline::ScheduleShape& s = cut.schedule.shape;
  StageShape stage{
      .trains = trains,
      .chunks = {},
      .first = rank == 0,
      .last = rank == s.stages - 1,
      .frames = std::max(trains ? train.peak_frames[size_t(rank)] : 1, evaluation.peak_frames[size_t(rank)]),
      .batches =
          std::max(trains ? train.peak_batches[size_t(rank)] : 1, evaluation.peak_batches[size_t(rank)]),
      .split_backward = splits(cut.schedule.ranks[size_t(rank)]),
      .recompute = recompute,
      .waiting_weights = train.peak_weights[size_t(rank)]};
  for (int c = 0; c < s.chunks; ++c) stage.chunks.push_back(cut.pieces[size_t(s.piece(rank, c))]);
  std::vector<int> layers;
  for (const Range& chunk : stage.chunks) layers.push_back(int(chunk.size()));
  if (trains) keep_layers(stage.recompute, kept, rank, layers);
  return stage;
}

void find_holders(PipelineCut& cut, const model::Model& model) {
  for (const UnitSpec& u : model.units()) cut.units.push_back(u.name);
  cut.holders.resize(cut.units.size());
  for (int r = 0; r < int(cut.stages.size()); ++r)
    for (const UnitSpec& u : units_of(model, cut.stages[size_t(r)]))
      cut.holders[size_t(cut.index_of(u.name))].push_back(r);
}

}  // namespace

int PipelineCut::index_of(const std::string& unit) const {
  const auto at = std::find(units.begin(), units.end(), unit);
  CHECK(at != units.end(), "the model has no unit {}", unit);
  return int(at - units.begin());
}

pipeline::Schedule schedule_of(const config::PipelineConfig& c, const pipeline::ScheduleShape& shape) {
  if (shape.stages == 1) return pipeline::make_schedule("1f1b", shape);
  if (!c.schedule.ends_with(".json")) return pipeline::make_schedule(c.schedule, shape);
  pipeline::Schedule s = pipeline::read_schedule(c.schedule);
  require(s.shape == shape, Exit::usage,
          "{}: made for {} stages, {} micro-batches and {} virtual stages; this job has {}, {} and {}",
          c.schedule, s.shape.stages, s.shape.micros, s.shape.chunks, shape.stages, shape.micros,
          shape.chunks);
  return s;
}

PipelineCut cut_pipeline(const config::DsConfig& config, const model::Model& model, bool trains) {
  const config::PipelineConfig& c = config.pipeline;
  require(!trains || config.checkpointing.policy != config::CheckpointingPolicy::fit ||
              config.checkpointing.by_rank(),
          Exit::usage,
          "activation_checkpointing.policy: \"fit\" is a choice of `cleave train` and `cleave plan`; set "
          "full_layers and selective_layers, which `cleave plan` prints");
  const pipeline::ScheduleShape shape{c.stages, int(config.gradient_accumulation_steps), c.virtual_stages};
  const Costs costs = costs_of(model, config.train_micro_batch_size_per_gpu);
  PipelineCut cut;
  cut.schedule = schedule_of(c, shape);
  // Fills the pipe in evaluation as far as one list of this length can.
  cut.evaluation = pipeline::make_schedule(
      "forward_only", {shape.stages, std::max(shape.micros, 4 * shape.stages), shape.chunks});
  cut.pieces = pipeline::partition_layers(costs.layers, costs.head, shape.pieces(), c.partition_method);
  pipeline::SimulateOptions times;
  times.work = cut.work = pipeline::work_of_pieces(costs.layers, costs.head, cut.pieces);
  times.splits = cut.splits = pipeline::split_shares(costs.layers, costs.head, cut.pieces);
  const pipeline::Simulation train = pipeline::simulate(cut.schedule, times);
  const pipeline::Simulation evaluation = pipeline::simulate(cut.evaluation, {.training = false});
  CHECK(train.fault.empty() && evaluation.fault.empty(), "the schedule {}: {}{}", c.schedule, train.fault,
        evaluation.fault);
  Recompute recompute = recompute_of(config.checkpointing, int(model.layers.size()));
  const config::TensorParallelConfig& tensor = config.tensor_parallel;
  recompute.partition = recompute.partition && tensor.size() > 1 && !tensor.sequence_parallel;
  for (int r = 0; r < shape.stages; ++r)
    cut.stages.push_back(stage_of(cut, train, evaluation, config.checkpointing, recompute, trains, r));
  find_holders(cut, model);
  cut.layers = costs.layers, cut.layers.push_back(costs.head);
  if (shape.stages > 1) {
    cut.idle_share = train.idle_share();
    cut.line = pipeline::format_pipeline(c.schedule, shape, costs.layers, costs.head, cut.pieces, train);
  }
  return cut;
}

}  // namespace cleave::runtime
