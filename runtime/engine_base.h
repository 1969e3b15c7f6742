// Common interface of all engines: checkpoints, weights, the memory plan and properties.
#pragma once
#include <functional>
#include <memory>
#include <optional>
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

// Forward declarations keep these headers out of programs that include this one.
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
struct StateSum;      // runtime/replay/step_record.h
class SavedTraining;  // runtime/saved_training.h

// Parts of a checkpoint to load in addition to the weights. Other parts stay unchanged.
struct Load {
  bool optimizer = true;  // state, and the number of its updates
  bool schedule = true;   // position of the learning-rate schedule
  bool steps = true;      // steps taken and the loss scale; without it, the other two must be false
};

class EngineBase {
 public:
  // Returns false after a step that threw when part of the state was already updated. Only possible if the
  // update does not need the norm of all gradients first (no clipping, no loss scale, no check for
  // overflows).
  bool state_is_whole() const;
  // Waits for the update of the last step and throws its errors. A GPU rank without offload returns from
  // train_batch earlier; the next call that reads state also waits.
  void synchronize();

  // Writes DIR/<tag> from all ranks, then points DIR/latest at it; a run killed at any point leaves the
  // previous checkpoint intact. Collective. The manifest keeps `client` for the caller (JSON text). With
  // checkpoint.async, waits for the previous save, copies this rank's state to host memory and returns; a
  // thread writes the copy during later steps, and the next save or finish_save() throws its errors.
  // `written` is called when the checkpoint is complete: here, or on that thread. Throws Error(usage) if
  // ranks give different tags.
  using Written = std::function<void(const checkpoint::SavedCheckpoint&)>;
  void save_checkpoint(const std::string& dir, const std::string& tag, const std::string& client = "{}",
                       const Written& written = {});
  // Waits for the current save and throws its errors. Collective. The engine's destructor also waits, but
  // drops errors; while an exception is propagating it abandons the save instead.
  void finish_save();
  // Returns true if the current save failed on this rank; then all ranks have to call finish_save().
  bool save_failed() const;
  // Restores weights, optimizer state, schedule position and loss scale; returns the `client` text of the
  // save. Any number of ranks and any stage may load. If one rank fails, every rank throws Error(checkpoint);
  // already restored state stays, and another checkpoint may be loaded. Collective.
  // Throws Error(checkpoint) with the name of optimizer state that is missing from the checkpoint, if `what`
  // contains it.
  // An imported checkpoint keeps the current seed, and the current loss scale if it has none. A weights-only
  // import always resets the optimizer.
  std::string load_checkpoint(const std::string& dir, const std::string& tag = "latest", Load what = {});
  // Loads a training that the caller opens on every rank, under this engine's parameter names. If open()
  // throws on one rank, every rank throws.
  std::string load_checkpoint(const std::function<SavedTraining()>& open, Load what = {});
  // Returns one sentence for each training setting of this configuration that differs from the checkpoint
  // loaded last (config::training_values).
  const std::vector<std::string>& changed_settings() const;
  bool optimizer_is_new() const;  // no update was applied since the state was created

  // Keeps this text (JSON) with the next copy of the state in memory (EngineOptions::copies).
  void describe_copies(std::string client);
  // Restores the newest step that the copies of all ranks have, with its loss scale and positions, and
  // returns its text. Collective. Throws Error(rank_lost) if the ranks have no step in common.
  std::string load_copies();

  // Loads external weights, such as a published model: calls read() for records of kind "master" that cover
  // everything this rank holds, in any memory. Optimizer state and position stay unchanged. If read() throws
  // on one rank, every rank throws. Collective.
  void load_weights(const std::function<void(const checkpoint::Record&)>& read);

  // Writes whole weights in the model's type to a folder, as safetensors with an index above max_file_size
  // bytes: the output of `cleave export` without config.json. `names` maps parameters to tensors
  // (runtime/weight_names.h). Weights pass through memory in pieces, at every stage. Replaces existing
  // weights after everything is written. Collective; throws Error(checkpoint) on every rank.
  void save_16bit_model(const std::string& dir, const checkpoint::WeightNames& names,
                        int64_t max_file_size = 5'000'000'000);

  int64_t step() const;             // steps taken, including skipped ones
  int64_t skipped() const;          // skipped steps
  optim::Rates next_rates() const;  // scheduled rates of the next step
  // Replaces the scheduled learning rate of the next update only.
  void set_next_lr(double lr);
  double loss_scale() const;  // loss scale of the next step
  const config::DsConfig& config() const;
  Device device() const;                      // device of this rank
  Stream& stream();                           // of the passes, for work on parameters and gradients
  int64_t params() const;                     // number of elements of the whole model
  std::vector<ParamSpec> parameters() const;  // specification of each parameter that is a number
  std::vector<std::string> trained() const;   // names of the parameters that are not frozen
  const MeshShape& mesh() const;
  MeshPlace place() const;  // of this rank; ranks at the same place on the data axis get the same samples
  const EngineNotes& notes() const;
  zero::UpdateBytes update_bytes() const;  // for this rank's offloaded state, per step

  // Returns a table of this rank's units: parameters, elements with padding, and local size and memory.
  std::string describe_units() const;

  MemoryTable memory_planned() const;  // from a dry run of the allocation code
  MemoryTable memory_live() const;
  MemoryTable memory_peak() const;
  comm::CommBytes comm_bytes() const;  // bytes that this rank sent since construction
  std::vector<std::pair<RankGroup, comm::CommBytes>> comm_bytes_by_group() const;

  // Errors and warnings of bad steps name samples by this function: those of a micro-batch, or of the whole
  // step without one. Give the same function on all ranks.
  void name_samples(std::function<std::string(const std::optional<MicroPlace>& micro)> samples);

  // State of this rank alone, for another process that computes a step of this rank again: its position, and
  // all elements that it holds of masters, optimizer state and layer state, in a checkpoint without other
  // ranks. Not collective, except publish_parameters(), which has to follow load_own_state().
  void save_own_state(const std::string& dir, const std::string& tag);
  void load_own_state(const std::string& dir, const std::string& tag);
  std::vector<StateSum> own_state_sums();  // checksums of these elements, in the order of the units
  int64_t own_state_bytes() const;

  // Names of the saved kinds of a parameter: "master", then the optimizer's state names.
  std::vector<std::string> kinds() const;
  // Returns one kind of a whole parameter in fp32, gathered from its slices. Throws Error(usage) for an
  // unknown name, and for optimizer state of a frozen parameter. Collective.
  std::vector<float> parameter(const std::string& name, int kind = 0);
  // Returns a parameter's master with NaN for elements that another rank updates.
  std::vector<float> own_master(const std::string& name);
  // Returns the 64-bit words of a whole parameter that is not a number (UnitSpec::word). Otherwise as
  // `parameter`.
  std::vector<int64_t> bits(const std::string& name);
  // Returns a parameter's working copy in the model's type on the rank's device, with the values of the last
  // step, if the whole parameter stays there between its uses. Otherwise undefined.
  Tensor resident(const std::string& name);
  // Returns consecutive working copies of whole parameters with the current values. Collective.
  Buffer gathered(const std::vector<std::string>& names);
  // Overwrites this rank's part of the parameter. All ranks give the same values, for parameters in unit
  // order. publish_parameters() brings masters to the layers. Both are collective.
  void write_parameter(const std::string& name, std::span<float> whole, int kind = 0);
  void write_bits(const std::string& name, std::span<int64_t> whole);
  void publish_parameters();
  // Overwrites whole parameters with the same values on every rank; optimizer states stay unchanged.
  // Collective.
  void set_parameters(const std::function<std::vector<float>(const ParamSpec&)>& values);

 protected:
  explicit EngineBase(std::unique_ptr<EngineCore> core);
  ~EngineBase();
  EngineCore& core() const { return *core_; }

 private:
  // Returns the number of elements of a parameter's state, or of its words.
  int64_t require_state(const std::string& name, int kind, bool bits) const;
  void read_whole(const std::string& name, int kind, Tensor whole);
  void write_whole(const std::string& name, int kind, Tensor whole);

  std::unique_ptr<EngineCore> core_;
};

}  // namespace cleave::runtime
