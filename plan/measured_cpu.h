// Predicts the step time on CPU ranks of one machine measured by `cleave bench`: the kernels counted in a
// rank's plan, each at the rate of the nearest row of the report in its fastest round, so the prediction is
// for an otherwise idle machine.
#pragma once
#include <string>

#include "plan/predict.h"

namespace cleave::plan {

class MeasuredCpu {
 public:
  // Throws Error(usage) with the file and the missing rows.
  explicit MeasuredCpu(const std::string& file);
  ~MeasuredCpu();

  // Predicts a step of ranks that all run on this machine, each with its share of the cores. The ratio of the
  // report's measured step to the sum of its kernels corrects for effects outside single kernels, such as
  // cache state and transitions; all results are multiplied by it. Messages do not overlap: a rank copies
  // with its own cores. Throws Error(usage) for several ranks if the report has no message rows, and for
  // state on disk if it has no disk rows.
  StepTime predict(const config::DsConfig& config, const JobPlan& plan) const;

 private:
  struct Rates;
  std::unique_ptr<Rates> rates_;
};

}  // namespace cleave::plan
