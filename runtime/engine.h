// The training engine: one object that owns a rank's share of a model's state and takes optimizer steps as a
// ds_config asks. Everything that partitions, offloads or overlaps is a value given to the parts below it;
// the step itself is the same for every configuration.
//
//   DsConfig config = ...;                             // config/read_config.h
//   Engine engine(config, make_mlp({{64, 32, 10}}, DType::fp32), world, {});
//   Engine engine(config, [&](const Axes& a) { return make_model(kGpt2, sizes, type, seq, "gpt", a); }, ...);
//   for (int step = 0; step < 100; ++step)
//     StepResult r = engine.train_batch([&](int micro) { return my_batch(step, micro); });
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/mesh_shape.h"
#include "core/range.h"
#include "device/batch.h"
#include "device/memory.h"
#include "device/stream.h"

// Declared here so that a program which includes this page compiles none of theirs.
namespace cleave {
struct ParamSpec;  // core/param_spec.h
class Trace;       // device/trace.h
namespace checkpoint {
struct Record;           // checkpoint/checkpoint.h
struct SavedCheckpoint;  // checkpoint/checkpoint.h
struct WeightNames;      // checkpoint/weight_reader.h
}  // namespace checkpoint
namespace comm {
struct CommBytes;    // comm/communicator.h
class Communicator;  // comm/communicator.h
}  // namespace comm
namespace config {
struct DsConfig;  // config/ds_config.h
}
namespace model {
struct Axes;   // model/axes.h
struct Model;  // model/layer.h
}  // namespace model
namespace pipeline {
struct LayerCost;   // pipeline/partition.h
struct Simulation;  // pipeline/simulate.h
}  // namespace pipeline
namespace zero {
struct UpdateBytes;  // zero/update_times.h
}
}  // namespace cleave

namespace cleave::runtime {

// The type that a model must be made in to be trained as the configuration says.
DType model_dtype(const config::DsConfig& config);

// A rank's part of the model when axes cut its layers or sequences. Also called with axes of one rank, for
// what concerns the whole model.
using ModelFactory = std::function<model::Model(const model::Axes& axes)>;

struct EngineOptions {
  uint64_t seed = 42;  // of initial weights and dropout
  MemoryLimits limits = {};
  Stream::Mode compute = Stream::Mode::inline_;  // of a CPU rank
  Device device = {};
  // Counts memory and messages, and computes nothing: steps may be taken over a planned communicator
  // (comm/planned.h), with batches whose memory is never read. Losses and norms come out as zero.
  bool dry = false;
  // Nothing is trained: no gradients, no masters, no optimizer state, and activations live for one layer.
  // What the configuration says of these is not read. Weights are undefined until load_checkpoint or
  // set_parameters; train_batch and save_checkpoint are errors (internal).
  bool inference = false;
  // For inference: how many texts that grow each place on the data and sequence axes keeps keys and values of
  // (Engine::extend).
  int64_t texts = 0;
  Trace* trace = nullptr;  // of training steps; outlives the engine
};

struct StepResult {
  int64_t step = 0;       // 1-based, counts skipped steps too
  double loss = 0;        // mean over the targets of all ranks' micro-batches, or as cleave.loss_average says
  double grad_norm = 0;   // of the averaged, unscaled gradient before clipping
  double lr = 0;          // used by this step
  double loss_scale = 1;  // used by this step
  bool skipped = false;   // a gradient overflowed somewhere: no state changed, only the loss scale
  int64_t skipped_total = 0;
};

struct Evaluation {
  double loss = 0;      // mean over all targets; not a number where there are none
  int64_t targets = 0;  // that have a loss
  // Of these, those whose class has the largest logit, of equal ones the first; none where the head does not
  // say so (Head::counts_hits). An exact count, the same in every layout where rounding leaves the largest
  // logit the largest.
  std::optional<int64_t> hits = {};

  // The share of hits; none where there are none to have or no targets. Where targets are the next tokens,
  // this is the token accuracy.
  std::optional<double> accuracy() const;
};

// What a run has to say of itself at its start, for people. A text is empty where nobody would ask.
struct EngineNotes {
  std::string pipeline;  // which rank has what of the model, and the idle share to expect
  std::string disk;      // where state on disk is, and how fast that is
  std::string update;    // why offloaded state is updated where it is
  std::string graphs;    // whether passes are CUDA graphs

  std::vector<std::string> lines() const;  // of those that are not empty
};

class Engine {
 public:
  // Collective over world, whose ranks form a pipe x data x sequence x tensor grid: mesh_shape(config,
  // world.size()). Throws Error(usage) when the ranks or the model cannot be divided so, and Error(memory)
  // with the category table when the plan exceeds options.limits, before anything large is allocated.
  Engine(const config::DsConfig& config, const ModelFactory& make, comm::Communicator& world,
         const EngineOptions& options);
  // A model whose layers are whole; Error(usage) when the configuration cuts layers.
  Engine(const config::DsConfig& config, model::Model model, comm::Communicator& world,
         const EngineOptions& options);
  ~Engine();

  // One optimizer step over gradient_accumulation_steps micro-batches. Ranks of one place on the data axis
  // are given the same micro-batches, of whole samples also where ranks share a sequence. Collective. The
  // result is the same on every rank. Throws Error(data), before anything has changed, when no target of any
  // micro-batch has a loss, and Error(training) when the loss is not finite in fp32 or bf16, or
  // the loss scale is at its minimum and still overflows; the state is then that before the step, where
  // state_is_whole().
  StepResult train_batch(const BatchSource& data);
  // False after a step that threw while it had updated some of the state, which is so where nothing had to
  // know the norm of all gradients before (no clipping, no loss scale, no check for overflows).
  bool state_is_whole() const;
  // Waits until the last step's update is done, and throws what went wrong in it. A GPU rank without offload
  // returns from train_batch before; the next call on the engine that reads something waits, too.
  void synchronize();

  // Over `micros` micro-batches of every place on the data axis. Collective; nothing is changed. `stop` is
  // asked between micro-batches, on every rank alike; once it says so the evaluation ends, with no targets.
  Evaluation evaluate(const BatchSource& data, int micros, const std::function<bool()>& stop = {});

  // Logits [rows, classes] of one micro-batch, in host memory of every rank; collective when parameters are
  // sharded, and over the other axes. `rows`: these of its rows (sample by sample, position by position)
  // only, in place of all.
  std::vector<float> predict(const Batch& batch, std::optional<Range> rows = {});

  // Texts that grow: the engine keeps the keys and values of their positions, so that a token costs one row.
  int64_t texts() const;  // EngineOptions::texts of every place on the data and sequence axes
  struct TextPart {
    int64_t text = 0;  // below texts()
    int64_t begin =
        0;  // where its tokens stand: at most what the text has; what it had from there on is gone
    std::vector<int32_t> tokens = {};  // at least one; no position beyond the model's sequence
  };
  // Logits [parts, classes] behind each part, in host memory of every rank, given the same parts everywhere;
  // of a text at most one. Collective. They are those of predict() for the whole text up to rounding. Tokens
  // are computed together only where each text has one; on a CPU a text has the same bits beside up to seven
  // others of its place as alone.
  std::vector<float> extend(const std::vector<TextPart>& parts);

  // Writes DIR/<tag> from all ranks, then points DIR/latest at it; a run that is killed at any point leaves
  // the checkpoint before it whole. Collective. `client` is kept in the manifest for the caller (JSON text).
  // Where the configuration says checkpoint.async, it waits for the save before, copies this rank's state to
  // memory of the host and returns, and a thread writes the copy behind the steps that follow; what goes
  // wrong there is thrown by the next save or by finish_save(). `written` is called when the checkpoint is
  // whole: here, or on that thread.
  using Written = std::function<void(const checkpoint::SavedCheckpoint&)>;
  void save_checkpoint(const std::string& dir, const std::string& tag, const std::string& client = "{}",
                       const Written& written = {});
  // Waits for the save that is being written, and throws what went wrong in it. Collective. An engine that
  // goes waits, too, but has nobody to tell; while an exception is under way it gives the save up instead.
  void finish_save();
  // Whether the save that is being written went wrong, on this rank: then all have to call finish_save().
  bool save_failed() const;
  // Restores weights, optimizer state, schedule position and loss scale; returns what the caller stored. Any
  // number of ranks and any stage may load. Throws Error(checkpoint), on every rank when it does on one; what
  // was read before stays, and another checkpoint may be loaded. Collective.
  enum class Load {
    all,           // Error(checkpoint) names the state that the optimizer wants and the checkpoint lacks
    no_optimizer,  // the optimizer begins anew, with its state as it is made and its count of updates at 0
  };
  // An imported checkpoint leaves seed and loss scale as they are, and one of weights alone begins the
  // optimizer anew whatever is asked for.
  std::string load_checkpoint(const std::string& dir, const std::string& tag = "latest",
                              Load what = Load::all);
  bool optimizer_is_new() const;  // no update was applied since its state was made

  // Weights from elsewhere, such as a published model: calls read() for records of kind "master" that
  // together are all that this rank holds, wherever it lives. Optimizer state and position stay as they are.
  // What read() throws on one rank, every rank throws. Collective.
  void load_weights(const std::function<void(const checkpoint::Record&)>& read);

  // Writes whole weights in the model's type to a folder, as safetensors with an index where they are more
  // than max_file_size bytes: what `cleave export` makes of a checkpoint, without config.json. `names` is
  // what parameters are called there (runtime/weight_names.h). They go through memory in pieces, at every
  // stage. Weights that were there are replaced when all is written. Collective; Error(checkpoint), on every
  // rank.
  void save_16bit_model(const std::string& dir, const checkpoint::WeightNames& names,
                        int64_t max_file_size = 5'000'000'000);

  int64_t step() const;               // steps taken, skipped ones included
  const model::Model& model() const;  // this rank's part of its layers
  const config::DsConfig& config() const;
  Device device() const;   // where this rank computes
  int64_t params() const;  // of the whole model
  int64_t samples_per_micro() const;
  const MeshShape& mesh() const;
  MeshPlace place() const;  // of this rank; those of one place on the data axis are given the same samples
  const EngineNotes& notes() const;
  double idle_share() const;               // of the pipeline's ranks, expected
  zero::UpdateBytes update_bytes() const;  // of this rank's offloaded state, in one step
  // What each layer of the whole model costs in one micro-batch; the head is the last. With axes that cut
  // layers or sequences, a rank does its share of it.
  const std::vector<pipeline::LayerCost>& layer_costs() const;
  pipeline::Simulation timeline() const;  // of one step's schedule, recorded, in units of work
  int64_t frame_bytes() const;            // activations that a micro-batch in flight keeps on this rank

  // A table of this rank's units: parameters, elements with padding, and what it holds of each where.
  std::string describe_units() const;

  MemoryTable memory_planned() const;  // from a dry run of the allocation code
  MemoryTable memory_live() const;
  MemoryTable memory_peak() const;
  comm::CommBytes comm_bytes() const;  // sent by this rank since construction
  std::vector<std::pair<RankGroup, comm::CommBytes>> comm_bytes_by_group() const;

  // One whole parameter in fp32 (the master's values), gathered from its slices; for tests and export.
  // Collective.
  std::vector<float> parameter(const std::string& name);
  // Overwrites whole parameters on every rank from the same values, leaving optimizer states as they are.
  // Collective.
  void set_parameters(const std::function<std::vector<float>(const ParamSpec&)>& values);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace cleave::runtime
