// Streams of a caller that computes on the CPU, such as torch without a GPU, for tests of the Python package
// (tests/python/interpreted.py). Memory of the GPU is host memory here. The caller's work is enqueued as
// tasks that write, overwrite or check memory when the stream reaches them, so that a missing order between
// its streams and the engine's changes numbers.
#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace {

std::atomic<int64_t> changed{0};

void enqueue(void* stream, std::function<void()> task) {
  auto owned = std::make_unique<std::function<void()>>(std::move(task));
  const cudaHostFn_t run = [](void* data) {
    const std::unique_ptr<std::function<void()>> mine(static_cast<std::function<void()>*>(data));
    (*mine)();
  };
  if (cudaLaunchHostFunc(static_cast<cudaStream_t>(stream), run, owned.get()) == cudaSuccess) owned.release();
}

std::vector<char> copied(const void* from, int64_t bytes) {
  const char* begin = static_cast<const char*>(from);
  return {begin, begin + bytes};
}

}  // namespace

EXPORTED void* cleave_test_stream(int gpu) {
  cudaStream_t stream = nullptr;
  cudaSetDevice(gpu);
  return cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess ? stream : nullptr;
}

// Blocks the host until the stream is idle. Returns 0, or CUDA's error.
EXPORTED int cleave_test_wait(void* stream) {
  return int(cudaStreamSynchronize(static_cast<cudaStream_t>(stream)));
}

// Later work of `stream` starts after the work of `other` so far.
EXPORTED int cleave_test_join(void* stream, void* other) {
  cudaEvent_t event = nullptr;
  int failed = int(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  failed = failed ? failed : int(cudaEventRecord(event, static_cast<cudaStream_t>(other)));
  failed = failed ? failed : int(cudaStreamWaitEvent(static_cast<cudaStream_t>(stream), event, 0));
  cudaEventDestroy(event);
  return failed;
}

EXPORTED void* cleave_test_memory(int64_t bytes) {
  void* memory = nullptr;
  if (cudaMalloc(&memory, size_t(bytes)) != cudaSuccess) return nullptr;
  // The interpreter fills memory at its first use that it sees.
  const bool filled =
      cudaMemset(memory, 0xff, size_t(bytes)) == cudaSuccess && cudaStreamSynchronize(nullptr) == cudaSuccess;
  return filled ? memory : nullptr;
}

// Writes the present values of `from` to `to` when the stream gets there.
EXPORTED void cleave_test_write(void* stream, void* to, const void* from, int64_t bytes) {
  enqueue(stream, [to, values = copied(from, bytes)] { std::memcpy(to, values.data(), values.size()); });
}

// Overwrites the memory when the stream gets there, as a later owner would.
EXPORTED void cleave_test_reuse(void* stream, void* memory, int64_t bytes) {
  enqueue(stream, [memory, bytes] { std::memset(memory, 0xff, size_t(bytes)); });
}

// Counts the memory as changed if it differs from its present values when the stream gets there.
EXPORTED void cleave_test_read(void* stream, const void* memory, int64_t bytes) {
  enqueue(stream, [memory, values = copied(memory, bytes)] {
    if (std::memcmp(memory, values.data(), values.size()) != 0) ++changed;
  });
}

// Number of reads that found other values.
EXPORTED int64_t cleave_test_changed() { return changed; }
