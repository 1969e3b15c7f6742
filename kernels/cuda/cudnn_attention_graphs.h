// Causal attention as cuDNN graphs, on tensors in the layout of kernels/attention.h.
#pragma once
#include "kernels/cuda/attention_routes.h"
#include "kernels/cuda/cudnn_graph.h"

namespace cleave::kernels::gpu {

// Names of the tensors in memory and of the numbers from the host.
namespace attention_names {
inline constexpr int64_t q = 1, k = 2, v = 3, y = 4, lse = 5, scale = 6, lowest = 7, dy = 8, dq = 9, dk = 10,
                         dv = 11, delta = 12, one = 13, dq_sums = 14;
}

// Graph from q, k, v, scale and lowest (minus infinity) to y and lse.
std::shared_ptr<CudnnGraph> attention_graph(const AttentionShape& shape);
// Summation of the query gradients.
enum class QuerySums {
  in_order,   // the score gradient goes through the workspace, two bytes per score
  any_order,  // into dq_sums, fp32 with dq's numel, initially zero
};
// Graph from q, k, v, y, dy, lse, scale, lowest and one (1) to dq, dk and dv; delta is scratch of lse's size.
std::shared_ptr<CudnnGraph> attention_gradient_graph(const AttentionShape& shape, QuerySums sums);

}  // namespace cleave::kernels::gpu
