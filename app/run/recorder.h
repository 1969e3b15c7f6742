// Records the steps of a run, which may follow the record of another run.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "app/run/run_record.h"
#include "runtime/engine.h"

namespace cleave::app {

// Collective: all ranks make one and call it in each step.
class Recorder {
 public:
  // `writes`: on one rank. All outlive this.
  Recorder(const RecordOptions& options, runtime::Engine& engine, bool writes);
  void begin_step();
  void end_step(const runtime::StepResult& result);
  void finish();

 private:
  void gradients();  // between the last micro-batch and the update
  void weights(int64_t step);
  std::vector<float> followed(const std::string& name, int64_t step) const;

  const RecordOptions& options_;
  runtime::Engine& engine_;
  std::vector<RecordedParameter> parameters_;
  std::optional<RunRecord> follow_;
  std::optional<RunRecordWriter> writer_;
};

}  // namespace cleave::app
