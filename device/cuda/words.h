// Memory words that GPU streams write and wait for. The streams may belong to other processes, and the other
// side may be the host. CUDA does not know this order, so a waiting stream must not share a GPU channel with
// the stream that it waits for (set_cuda_environment).
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

namespace cleave {

// Delays later work of the stream until int32(*word - value) >= 0. The stream's GPU must be able to access
// `word`.
void wait_for_word(cudaStream_t stream, uint32_t* word, uint32_t value, int device);
// Sets *word = value when the earlier work of the stream is done and visible system-wide.
void write_word(cudaStream_t stream, uint32_t* word, uint32_t value, int device);

}  // namespace cleave
