// Whether a GPU was lost, asked so that nobody waits for the answer.
#pragma once
#include <cuda_runtime_api.h>

namespace cleave {

// The error that every call of CUDA returns since a kernel or the device failed, as far as it is known;
// cudaSuccess otherwise. At most once a second, and never twice at a time, a thread of its own asks the
// driver, because the answer may have to wait for a lock that the caller must not wait for: ask again.
cudaError_t known_loss(int device);

}  // namespace cleave
