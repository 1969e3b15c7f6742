// Causal attention as graphs of cuDNN's, on tensors as kernels/attention.h lays them out.
#pragma once
#include "kernels/cuda/attention_routes.h"
#include "kernels/cuda/cudnn_graph.h"

namespace cleave::kernels::gpu {

// The tensors in memory, and the numbers that the host gives.
namespace attention_names {
inline constexpr int64_t q = 1, k = 2, v = 3, y = 4, lse = 5, scale = 6, lowest = 7, dy = 8, dq = 9, dk = 10,
                         dv = 11, delta = 12, one = 13, dq_sums = 14;
}

// q, k, v, scale and lowest (minus infinity) to y and lse.
std::shared_ptr<CudnnGraph> attention_graph(const AttentionShape& shape);
// How the gradient of the queries is added up.
enum class QuerySums {
  in_order,   // the gradient of the scores goes through the workspace, two bytes a score
  any_order,  // in dq_sums, fp32 of dq's numel, which is zero before
};
// q, k, v, y, dy, lse, scale, lowest and one (1) to dq, dk and dv; delta is memory of lse's size.
std::shared_ptr<CudnnGraph> attention_gradient_graph(const AttentionShape& shape, QuerySums sums);

}  // namespace cleave::kernels::gpu
