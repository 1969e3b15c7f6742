// What one training step costs, layer by layer: parameters, arithmetic and measured time.
#pragma once
#include <string>
#include <vector>

#include "device/trace.h"

namespace cleave::monitor {

struct LayerRow {
  std::string name;
  int64_t params = 0;
  double flops = 0;  // of the step on one rank, forward and backward, without what is computed again
  double forward_ms = 0, backward_ms = 0;  // backward: with what is computed again
};

// Times of layers from the events of one step of a rank, [layers + 1][forward, backward] in ms, the head
// last. What is nested in a layer on its stream, such as a sum over a tensor axis, is its time as well.
class LayerTimes {
 public:
  explicit LayerTimes(size_t layers) : ms_(2 * (layers + 1), 0) {}
  void see(const TraceEvent& event);
  std::vector<double>& ms() { return ms_; }

 private:
  std::vector<double> ms_;
};

struct ProfileOptions {
  bool layers = true;  // a row a layer
  int top = 1;  // of each kind of layer table: so many kinds by parameters, arithmetic and time; 0: none
};

// The table of rows, `facts` ("ranks: 4", ...) above it; step_ms is the whole step's time. Kinds of layers
// are names with their numbers left out: h.0 to h.11 are h.*.
std::string format_profile(const std::vector<LayerRow>& rows, const std::vector<std::string>& facts,
                           double step_ms, const ProfileOptions& options);

}  // namespace cleave::monitor
