// Common parts of the CUDA runtime: this thread's GPU and last error, and the end of a call.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdio>
#include <string>

#include "tests/cuda_interpreter/calls.h"
#include "tests/cuda_interpreter/streams.h"

namespace interpreter {

inline thread_local cudaError_t last_failure = cudaSuccess;
inline thread_local int current_gpu = 0;

// Serializes calls like the driver. A call that waits (for space in a stream's queue, for a copy of
// pageable memory, for the whole GPU) blocks those of other threads; only synchronization lets them
// pass. CUDA_INTERPRETER_LOCK=0: no call blocks others.
class InDriver {
 public:
  InDriver();
  ~InDriver() { leave(); }
  InDriver(const InDriver&) = delete;
  void leave();

 private:
  bool in_ = false;
};

inline cudaError_t ended(cudaError_t error) {
  if (error != cudaSuccess) last_failure = error;
  return error;
}
// A failed call leaves its error for cudaGetLastError, as on a GPU.
#define CALL_OF_RUNTIME                                      \
  [[maybe_unused]] interpreter::InDriver in_driver;          \
  if (const int failure = interpreter::failure_of(__func__)) \
    return interpreter::ended(cudaError_t(failure));         \
  static_assert(true)
inline cudaError_t refused(const std::string& why, cudaError_t error) {
  std::fprintf(stderr, "cuda interpreter: %s\n", why.c_str());
  return ended(error);
}

// For calls that may throw.
template <class F>
cudaError_t guarded(F f, cudaError_t error = cudaErrorInvalidValue) {
  if (!streams().lost().empty()) return ended(cudaErrorLaunchFailure);
  try {
    f();
    return cudaSuccess;
  } catch (const Defect& e) {
    return refused(e.what(), error);
  }
}

inline Stream* stream_of(cudaStream_t s) {
  const auto value = reinterpret_cast<uintptr_t>(s);
  return value <= 2 ? streams().legacy(current_gpu) : reinterpret_cast<Stream*>(s);
}

// With CUDA_INTERPRETER_WAITS=1; for ranks that are threads and share a GPU, waits for the work of
// all.
void wait_for_gpu();
// Copies or fills bytes when the stream reaches the operation.
cudaError_t copy(void* to, const void* from, size_t bytes, cudaStream_t s);
cudaError_t fill(void* to, int value, size_t bytes, cudaStream_t s);

}  // namespace interpreter
