// Use of this machine, under the names of MLflow's system metrics.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "monitor/metrics.h"

namespace cleave::monitor {

class SystemMetrics {
 public:
  explicit SystemMetrics(std::string proc = "/proc") : proc_(std::move(proc)) {}
  // Returns processors since the last call, memory, and each GPU if NVIDIA's driver is installed. Leaves out
  // unknown values; the first call has no processors.
  std::vector<Scalar> sample();

 private:
  std::string proc_;
  int64_t busy_ = 0, total_ = 0;  // of the last call
};

}  // namespace cleave::monitor
