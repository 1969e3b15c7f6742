// Cost of one training step by layer: parameters, FLOPs and measured time.
#pragma once
#include <string>
#include <vector>

#include "device/trace.h"

namespace cleave::monitor {

struct LayerRow {
  std::string name;
  int64_t params = 0;
  double flops = 0;  // of the step on one rank, forward and backward, without recomputation
  double forward_ms = 0, backward_ms = 0;  // backward: with recomputation
};

// Layer times from the events of one step of a rank, [layers + 1][forward, backward] in ms, with the head
// last. Includes events nested in a layer on its stream, such as a sum over a tensor axis.
class LayerTimes {
 public:
  explicit LayerTimes(size_t layers) : ms_(2 * (layers + 1), 0) {}
  void see(const TraceEvent& event);
  std::vector<double>& ms() { return ms_; }

 private:
  std::vector<double> ms_;
};

struct ProfileOptions {
  bool layers = true;  // one row per layer
  int top = 1;         // number of layer kinds to list by parameters, FLOPs and time; 0: none
};

// Table of rows below `facts` ("ranks: 4", ...); step_ms is the time of the whole step. Kinds are layer names
// without numbers: h.0 to h.11 are h.*.
std::string format_profile(const std::vector<LayerRow>& rows, const std::vector<std::string>& facts,
                           double step_ms, const ProfileOptions& options);

}  // namespace cleave::monitor
