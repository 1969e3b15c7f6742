// Detects a lost GPU without blocking.
#pragma once
#include <cuda_runtime_api.h>

namespace cleave {

// Returns the sticky error of CUDA calls after a failure of a kernel or the device, as far as known; else
// cudaSuccess. A background thread asks the driver, at most once per second and one query at a time, because
// the query may wait for a lock that the caller must not wait for. Poll this function.
cudaError_t known_loss(int device);

}  // namespace cleave
