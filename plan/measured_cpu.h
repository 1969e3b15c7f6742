// How long a step would take on CPU ranks of one machine that `cleave bench` measured: the kernels that a
// rank launches, counted in its plan, each at the rate of the report's row that is nearest to it, in that
// row's fastest round: of a step that nothing else on the machine disturbs.
#pragma once
#include <string>

#include "plan/predict.h"

namespace cleave::plan {

class MeasuredCpu {
 public:
  // Error(usage), with the file and the rows, where some that are needed are missing.
  explicit MeasuredCpu(const std::string& file);
  ~MeasuredCpu();

  // Of ranks that all run on this machine, each on its share of the cores. What single kernels leave out -
  // caches that are warm, or are not; the passage from one to the next - is in the ratio of the report's step
  // to the same sum, by which all of it is multiplied. Messages are not hidden: a rank's copies take its own
  // cores. Error(usage) where there are several ranks and the report has no rows of messages, or state is on
  // disk and it has none of a disk.
  StepTime predict(const config::DsConfig& config, const JobPlan& plan) const;

 private:
  struct Rates;
  std::unique_ptr<Rates> rates_;
};

}  // namespace cleave::plan
