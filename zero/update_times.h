// Chooses the place of the update for state off the device: either host kernels update it at home, or it
// streams through the device, with negligible kernel time. Transfers and kernels overlap in pieces, so the
// estimate is the time of the busiest resource.
#pragma once
#include "device/memory.h"
#include "optim/optimizer.h"

namespace cleave::zero {

// Data moved per step and rank, counting only elements with state off the device.
struct UpdateBytes {
  int64_t state = 0;                                  // masters and moments, counted once
  int64_t read = 0, written = 0;                      // of state, over all walks of a step
  int64_t gradients_here = 0, gradients_at_home = 0;  // on the device, in host memory
  int64_t weights_here = 0, weights_at_home = 0;      // separate working copies; on disk: at home
  int64_t disk_tiles = 0;                             // tiles of state on disk
};

// Bytes per second: state updated by host kernels, and link to and from the device with both directions
// active.
struct UpdateRates {
  double host = 0, to_device = 0, to_host = 0;
};

// Seconds.
struct UpdateTimes {
  double host = 0, device = 0;
};
UpdateTimes update_times(const UpdateBytes& bytes, const UpdateRates& rates);

// Measures for some tenths of a second, with this optimizer and more memory of this kind than a cache holds.
// Runs once per process, for any number of engines. The link of a CPU rank is a copy within its memory.
UpdateRates measure_update(const optim::Optimizer& optimizer, Device device, MemoryKind home);

// Example: "update: on the host, 0.42 s a step (2.10e+09 bytes of state at 5.0 GB/s); streamed through ...".
std::string describe_update(const UpdateBytes& bytes, const UpdateRates& rates);

}  // namespace cleave::zero
