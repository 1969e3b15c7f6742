// Learning-rate schedules with the values of DeepSpeed and of the Hugging Face Trainer: pure functions of the
// number of applied optimizer steps. Skipped steps do not count, so a schedule has no state to save.
#pragma once
#include <cstdint>

#include "config_schema/ds_config.h"
#include "optim/rates.h"

namespace cleave::optim {

class LrSchedule {
 public:
  // optimizer_lr is the rate without a schedule, and the peak of schedules that do not set one.
  LrSchedule(const config::SchedulerConfig& config, double optimizer_lr);

  // Rates of the step that follows `applied_steps` successful ones (0 before the first).
  Rates at(int64_t applied_steps) const;

 private:
  config::SchedulerConfig config_;
  double optimizer_lr_;
};

}  // namespace cleave::optim
