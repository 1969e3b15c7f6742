// Stands in for cudnn_attention.cpp where the build has no cuDNN.
#include "kernels/cuda/attention_routes.h"

namespace cleave::kernels::gpu {

bool library_attention(const AttentionForward&, Stream&) { return false; }
bool library_attention(const AttentionBackward&, Stream&) { return false; }

}  // namespace cleave::kernels::gpu
