// Record of a run's first steps, for `cleave compare`: losses, and the gradients and weights of every
// parameter. A folder with run.json and files of consecutive fp32 tensors: weights-0 is before the first
// step, gradients-1 and weights-1 are of the first step.
#pragma once
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace cleave::app {

// Options of `cleave train` that only `cleave compare` gives. Empty `folder`: no record.
struct RecordOptions {
  std::string folder;
  // Record of another run. Each step then begins with that run's weights and applies that run's gradients, so
  // differences do not accumulate.
  std::string follow;
  // Relative change of each followed weight, with a pseudo-random sign: the rounding of the compute type.
  double perturb = 0;
};

struct RecordedParameter {
  std::string name;
  int64_t numel = 0;
  bool trained = true;  // frozen parameters have weights only
  double rounding = 0;  // largest relative L2 change of a followed gradient by this run's gradient type
};

struct RunArithmetic {
  double rounding = 0;  // largest relative rounding error of the type in which the run computes
  bool signs = false;   // the optimizer uses the signs of gradients, so a rounding may reverse an update
};

struct RecordedStep {
  double loss = 0, lr = 0, loss_scale = 1;
  bool skipped = false;
};

double l2_norm(std::span<const float> values);
// L2 norm of a - b, which have equal sizes. Elements that are not finite in both are equal; infinite if an
// element is finite in one only.
double l2_distance(std::span<const float> a, std::span<const float> b);

// A complete record. All failures are Error(usage).
class RunRecord {
 public:
  enum class Kind { weights, gradients };

  explicit RunRecord(std::filesystem::path folder);
  const std::vector<RecordedParameter>& parameters() const { return parameters_; }
  const std::vector<RecordedStep>& steps() const { return steps_; }
  const RunArithmetic& arithmetic() const { return arithmetic_; }
  bool has(const std::string& name) const { return index_.contains(name); }
  const RecordedParameter& parameter(const std::string& name) const;
  // Values of a parameter after `step` steps, or its gradient of that step.
  std::vector<float> read(Kind kind, int64_t step, const std::string& name) const;

 private:
  std::filesystem::path folder_;
  std::vector<RecordedParameter> parameters_;
  std::vector<RecordedStep> steps_;
  RunArithmetic arithmetic_;
  std::map<std::string, size_t> index_;
  std::map<std::string, int64_t> offset_[2];  // by kind, in elements
};

// Writes a record; run.json comes last, in finish(). Failures are Error(checkpoint).
class RunRecordWriter {
 public:
  RunRecordWriter(std::filesystem::path folder, std::vector<RecordedParameter> parameters,
                  const RunArithmetic& arithmetic);
  // Starts the file of this kind and step. append() gets its parameters in order.
  void begin(RunRecord::Kind kind, int64_t step);
  void append(std::span<const float> values);
  void end_step(const RecordedStep& step) { steps_.push_back(step); }
  void note_rounding(size_t parameter, double relative);
  void finish();

 private:
  void require_written();

  std::filesystem::path folder_, file_;
  std::vector<RecordedParameter> parameters_;
  std::vector<RecordedStep> steps_;
  RunArithmetic arithmetic_;
  std::ofstream out_;
};

}  // namespace cleave::app
