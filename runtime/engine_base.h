// What every engine has, whoever computes its passes: its state in checkpoints and as weights, its plan, and
// what it says of itself.
#pragma once
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/mesh_shape.h"
#include "device/memory.h"
#include "device/tensor.h"
#include "optim/schedule.h"
#include "runtime/step/engine_options.h"
#include "runtime/step/step_result.h"

// Declared here so that a program which includes this page compiles none of theirs.
namespace cleave {
struct ParamSpec;  // core/param_spec.h
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
struct DsConfig;  // config_schema/ds_config.h
}
namespace zero {
struct UpdateBytes;  // zero/update_times.h
}
}  // namespace cleave

namespace cleave::runtime {

struct EngineCore;
class SavedTraining;  // runtime/saved_training.h

class EngineBase {
 public:
  // False after a step that threw while it had updated some of the state, which is so where nothing had to
  // know the norm of all gradients before (no clipping, no loss scale, no check for overflows).
  bool state_is_whole() const;
  // Waits until the last step's update is done, and throws what went wrong in it. A GPU rank without offload
  // returns from train_batch before; the next call on the engine that reads something waits, too.
  void synchronize();

  // Writes DIR/<tag> from all ranks, then points DIR/latest at it; a run that is killed at any point leaves
  // the checkpoint before it whole. Collective. `client` is kept in the manifest for the caller (JSON text).
  // Where the configuration says checkpoint.async, it waits for the save before, copies this rank's state to
  // memory of the host and returns, and a thread writes the copy behind the steps that follow; what goes
  // wrong there is thrown by the next save or by finish_save(). `written` is called when the checkpoint is
  // whole: here, or on that thread. Error(usage) where ranks give different tags.
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
  // An imported checkpoint leaves the seed as it is, and the loss scale where it has none, and one of weights
  // alone begins the optimizer anew whatever is asked for.
  std::string load_checkpoint(const std::string& dir, const std::string& tag = "latest",
                              Load what = Load::all);
  // The same of a training that whoever calls opens, on every rank, under the names of this engine's
  // parameters. What open() throws on one rank, every rank throws.
  std::string load_checkpoint(const std::function<SavedTraining()>& open, Load what = Load::all);
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

  int64_t step() const;             // steps taken, skipped ones included
  int64_t skipped() const;          // these
  optim::Rates next_rates() const;  // that the schedule has for the next one
  double loss_scale() const;        // that the next one begins with
  const config::DsConfig& config() const;
  Device device() const;                      // where this rank computes
  int64_t params() const;                     // of the whole model
  std::vector<ParamSpec> parameters() const;  // the same, each
  const MeshShape& mesh() const;
  MeshPlace place() const;  // of this rank; those of one place on the data axis are given the same samples
  const EngineNotes& notes() const;
  zero::UpdateBytes update_bytes() const;  // of this rank's offloaded state, in one step

  // A table of this rank's units: parameters, elements with padding, and what it holds of each where.
  std::string describe_units() const;

  MemoryTable memory_planned() const;  // from a dry run of the allocation code
  MemoryTable memory_live() const;
  MemoryTable memory_peak() const;
  comm::CommBytes comm_bytes() const;  // sent by this rank since construction
  std::vector<std::pair<RankGroup, comm::CommBytes>> comm_bytes_by_group() const;

  // What a checkpoint saves of a parameter: "master", then the names of the optimizer's state.
  std::vector<std::string> kinds() const;
  // One of these of a whole parameter in fp32, gathered from its slices. Error(usage) for a name that there
  // is not, and for optimizer state of a frozen parameter. Collective.
  std::vector<float> parameter(const std::string& name, int kind = 0);
  // A parameter's working copy, of the model's type, where the rank computes, with what the last step made of
  // it: where all of the parameter stays there between its uses. Elsewhere undefined.
  Tensor resident(const std::string& name);
  // Working copies of whole parameters, one behind the other, made of their values now. Collective.
  Buffer gathered(const std::vector<std::string>& names);
  // Overwrites what this rank holds of it; every rank is given the same values, of parameters in the order of
  // their units. Masters reach layers by publish_parameters(). Both are collective.
  void write_parameter(const std::string& name, std::span<float> whole, int kind = 0);
  void publish_parameters();
  // Overwrites whole parameters on every rank from the same values, leaving optimizer states as they are.
  // Collective.
  void set_parameters(const std::function<std::vector<float>(const ParamSpec&)>& values);

 protected:
  explicit EngineBase(std::unique_ptr<EngineCore> core);
  ~EngineBase();
  EngineCore& core() const { return *core_; }

 private:
  int64_t require_state(const std::string& name, int kind) const;  // its elements

  std::unique_ptr<EngineCore> core_;
};

}  // namespace cleave::runtime
