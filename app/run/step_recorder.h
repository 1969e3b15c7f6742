// Records steps of a run in its output folder, from which `cleave replay` computes the step of one rank
// again: state and micro-batches of each rank, its calls with the results of other ranks, and checksums.
#pragma once
#include <functional>
#include <span>
#include <string>

#include "app/run/run_options.h"
#include "launcher/job.h"
#include "runtime/engine.h"
#include "runtime/replay/call_recorder.h"

namespace cleave::app {

class StepRecorder {
 public:
  using Say = std::function<void(const std::string&)>;
  // `ranks` are those of the engine. Begins to record the calls of its construction. All must outlive this.
  StepRecorder(const RunOptions& wanted, const config::ReadResult& read, launcher::Job& job,
               comm::Communicator& ranks, Say say);

  comm::Communicator& ranks() { return tapped_ ? *tapped_ : ranks_; }  // for the engine
  // Call after its construction. `model`: the facts of the run that its model can be made from.
  void engine_is_made(const nlohmann::json& model);

  // Returns true if the step after this number of steps is recorded.
  bool records(int64_t step) const { return (step + 1) % rule_.interval == 0; }
  // Call before and after such a step, without a background save. A record that cannot be written is
  // dropped on all ranks, with a warning. Collective.
  void begin(runtime::Engine& engine, std::span<const Batch> batches);
  void end(runtime::Engine& engine, const runtime::StepResult& result);

 private:
  // Runs the body on the ranks that record. If it fails on one, all drop the record. Collective.
  void try_all(const std::function<void()>& body);
  void remove_unfinished() const;
  void remove_old() const;
  nlohmann::json stored(const Batch& batch);

  const RunOptions& wanted_;
  const config::ReadResult& read_;
  const config::RecordSteps rule_;
  launcher::Job& job_;
  comm::Communicator& ranks_;
  const Say say_;
  const bool mine_;  // this rank records
  std::unique_ptr<runtime::CallRecorder> recorder_;
  std::unique_ptr<comm::Communicator> tapped_;
  std::vector<std::byte> setup_bytes_;
  runtime::StepRecord record_;
  std::filesystem::path folder_;  // of the current step, under its temporary name
  bool whole_ = false;            // the current record has no error so far
};

// Facts of this machine and build, by name: computations with equal facts have equal bits.
nlohmann::json computing_facts(const launcher::Job& job);

}  // namespace cleave::app
