// Replaces cudnn_attention.cpp and cudnn_gated.cpp in builds without cuDNN.
#include "kernels/cuda/attention_routes.h"
#include "kernels/cuda/gated_routes.h"

namespace cleave::kernels::gpu {

bool library_attention(const AttentionForward&, Stream&) { return false; }
bool library_attention(const AttentionBackward&, Stream&) { return false; }
bool library_gates(Stream&) { return false; }
int library_gates_version() { return 0; }
bool library_gated(const DenseGated&, Stream&) { return false; }
bool library_gated(const DenseGatedGradient&, Stream&) { return false; }

}  // namespace cleave::kernels::gpu
