// Where the update of state off the device runs, as a choice between two times: the host's kernels update it
// where it lives, or it streams through the device, whose kernels take no time beside the way. Either way
// pieces travel and are worked on side by side, so a time is that of the busiest resource.
#pragma once
#include "device/memory.h"
#include "optim/optimizer.h"

namespace cleave::zero {

// What one step of one rank moved, counting only elements whose state is off the device.
struct UpdateBytes {
  int64_t state = 0;                                  // masters and moments, once
  int64_t read = 0, written = 0;                      // of them, over all walks of a step
  int64_t gradients_here = 0, gradients_at_home = 0;  // on the device, in host memory
  int64_t weights_here = 0, weights_at_home = 0;      // working copies beside masters; on disk: at home
};

// Bytes a second: of state that the host's kernels update, and of the link to the device and back, both
// directions at once.
struct UpdateRates {
  double host = 0, to_device = 0, to_host = 0;
};

// Seconds.
struct UpdateTimes {
  double host = 0, device = 0;
};
UpdateTimes update_times(const UpdateBytes& bytes, const UpdateRates& rates);

// Measured for some tenths of a second, with this optimizer and more memory of this kind than a cache holds;
// once in a process, however many engines it makes.
// The link of a CPU rank is a copy within its memory.
UpdateRates measure_update(const optim::Optimizer& optimizer, Device device, MemoryKind home);

// "update: on the host, 0.42 s a step (2.10e+09 bytes of state at 5.0 GB/s); streamed through ...".
std::string describe_update(const UpdateBytes& bytes, const UpdateRates& rates);

}  // namespace cleave::zero
