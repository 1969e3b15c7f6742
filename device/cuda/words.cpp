#include "device/cuda/words.h"

#include <cuda.h>

#include "device/cuda/check.h"

namespace cleave {
namespace {

// cuStreamWaitValue32 and cuStreamWriteValue32 are loaded at run time, so the program starts without a
// driver.
using WordCall = CUresult (*)(CUstream, CUdeviceptr, cuuint32_t, unsigned int);
WordCall find(const char* name, int device) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result;
  cuda_check(cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &result),
             "cudaGetDriverEntryPoint", device);
  require(found && result == cudaDriverEntryPointSuccess, Exit::usage,
          "cuda:{}: the driver lacks {}; install a driver for CUDA 12 or newer", device, name);
  return reinterpret_cast<WordCall>(found);
}

void check(CUresult result, const char* name, int device) {
  CHECK(result == CUDA_SUCCESS, "{} on cuda:{} failed with CUresult {}", name, device, int(result));
}

}  // namespace

void wait_for_word(cudaStream_t stream, uint32_t* word, uint32_t value, int device) {
  static const WordCall call = find("cuStreamWaitValue32", device);
  check(call(stream, reinterpret_cast<CUdeviceptr>(word), value, CU_STREAM_WAIT_VALUE_GEQ),
        "cuStreamWaitValue32", device);
}

void write_word(cudaStream_t stream, uint32_t* word, uint32_t value, int device) {
  static const WordCall call = find("cuStreamWriteValue32", device);
  check(call(stream, reinterpret_cast<CUdeviceptr>(word), value, CU_STREAM_WRITE_VALUE_DEFAULT),
        "cuStreamWriteValue32", device);
}

}  // namespace cleave
