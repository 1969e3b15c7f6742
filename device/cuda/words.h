// Words in memory that a GPU's streams write and wait for. The streams may be of other processes, and the
// other side may be the host; CUDA's events know nothing of this order, so streams that wait must not share a
// channel of the GPU with what they wait for (set_cuda_environment).
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

namespace cleave {

// `word` is an address that the stream's GPU reaches.
// Later work of the stream starts when int32(*word - value) >= 0.
void wait_for_word(cudaStream_t stream, uint32_t* word, uint32_t value, int device);
// *word = value when the stream's earlier work is done and can be seen by everybody.
void write_word(cudaStream_t stream, uint32_t* word, uint32_t value, int device);

}  // namespace cleave
