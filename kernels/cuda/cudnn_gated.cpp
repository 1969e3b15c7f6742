// SwiGLU in cuDNN, fused with the preceding product.
#include <map>
#include <optional>

#include "kernels/cuda/cudnn_gated_graphs.h"
#include "kernels/cuda/cudnn_stream.h"
#include "kernels/cuda/gated_routes.h"
#include "kernels/cuda/trial.h"

namespace cleave::kernels::gpu {
namespace {

namespace tensors = gated_names;

struct Key {
  GatedShape shape;
  bool gradient;
  auto operator<=>(const Key&) const = default;
};
using KnownPlans =
    std::map<Key, std::optional<CudnnPlan>>;  // empty if the plan cannot be made or is too large

// Returns null if its workspace does not fit; throws Error(internal) if cuDNN cannot make a plan.
const CudnnPlan* gated_plan(const Key& key, CudaQueue& queue) {
  CudnnStream& cudnn = cudnn_of(queue);
  if (!cudnn.gated) cudnn.gated = std::make_shared<KnownPlans>();
  const auto [at, added] = static_cast<KnownPlans*>(cudnn.gated.get())->try_emplace(key);
  if (added) {
    queue.use();
    const std::shared_ptr<CudnnGraph> graph =
        key.gradient ? gated_gradient_graph(key.shape) : gated_graph(key.shape);
    graph->finish(cudnn.handle.get());
    CudnnPlan plan(graph, cudnn.handle.get());
    if (plan.workspace_bytes() <= cudnn.room) at->second = std::move(plan);
  }
  return at->second ? &*at->second : nullptr;
}

bool run_plan(const Key& key, const std::vector<CudnnPlan::Operand>& operands, CudaQueue& queue) try {
  const CudnnPlan* plan = gated_plan(key, queue);
  if (!plan) return false;
  const CudnnHandle& handle = cudnn_of(queue).handle;
  cudnn_use_stream(handle.get(), queue.use());
  plan->execute(handle.get(), operands, queue.product_scratch().raw());
  return true;
} catch (const Error& e) {
  if (e.exit() != Exit::internal) throw;
  return false;
}

// Address of the right half of rows of 2 n elements, or of the second half of a weight's rows.
const void* behind(const Tensor& x, int64_t elements) {
  return static_cast<const std::byte*>(x.raw()) + elements * size_of(x.dtype());
}

}  // namespace

bool library_gates(Stream& stream) {
  return proved("cuDNN", kCudnnSwitch, stream, [] { return cudnn_problem(); });
}

int library_gates_version() { return cudnn_version(); }

bool library_gated(const DenseGated& op, Stream& stream) {
  const GatedShape s{op.y.dim(0), op.y.dim(1), op.x.dim(1), op.y.dtype()};
  if (s.width % 8 || s.depth % 8 || !all_aligned({op.y, op.hidden, op.x, op.weight})) return false;
  return run_plan({s, false},
                  {{tensors::x, op.x.raw()},
                   {tensors::of_gate, op.weight.raw()},
                   {tensors::of_up, behind(op.weight, s.width * s.depth)},
                   {tensors::gate, op.hidden.raw()},
                   {tensors::up, behind(op.hidden, s.width)},
                   {tensors::y, op.y.raw()}},
                  cuda_queue(stream));
}

bool library_gated(const DenseGatedGradient& op, Stream& stream) {
  const GatedShape s{op.dy.dim(0), op.weight.dim(1), op.dy.dim(1), op.dy.dtype()};
  if (s.width % 8 || s.depth % 8 || !all_aligned({op.dhidden, op.hidden, op.dy, op.weight})) return false;
  return run_plan({s, true},
                  {{tensors::dy, op.dy.raw()},
                   {tensors::weight, op.weight.raw()},
                   {tensors::gate, op.hidden.raw()},
                   {tensors::up, behind(op.hidden, s.width)},
                   {tensors::dgate, op.dhidden.raw()},
                   {tensors::dup, behind(op.dhidden, s.width)}},
                  cuda_queue(stream));
}

}  // namespace cleave::kernels::gpu
