// Attention with cuDNN on any GPU. A shape is used if cuDNN makes plans for it, their workspace fits, and a
// trial agrees with the own kernels; a plan, if its first results do.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <optional>

#include "device/cuda/check.h"
#include "kernels/cuda/attention_sample.h"
#include "kernels/cuda/attention_trial.h"
#include "kernels/cuda/cudnn_attention_graphs.h"
#include "kernels/cuda/cudnn_stream.h"

namespace cleave::kernels::gpu {
namespace {

namespace name = attention_names;

constexpr int64_t kShortest = 128;  // shorter sequences leave the GPU idle either way

// Plans for as many sequences at a time as the workspace allows.
struct Plans {
  AttentionShape forward_shape, backward_shape;
  std::optional<CudnnPlan> forward, backward;
  QuerySums sums;  // summation of the backward
  // True if the results agree with the own kernels; empty before the first comparison.
  std::optional<bool> forward_agrees, backward_agrees;
};

using Known = std::map<AttentionShape, Plans>;  // empty plans if cuDNN cannot make them

using MakeGraph = std::function<std::shared_ptr<CudnnGraph>(const AttentionShape&)>;

CudnnPlan plan_of(const MakeGraph& make, const AttentionShape& shape, const CudnnHandle& handle) {
  const std::shared_ptr<CudnnGraph> graph = make(shape);
  graph->finish(handle.get());
  return CudnnPlan(graph, handle.get());
}

// Bytes of dq_sums, which precede the workspace of a plan that adds in any order.
int64_t bytes_of_sums(const AttentionShape& s) {
  return round_up(s.batch * s.seq * s.heads * s.dim * int64_t(sizeof(float)), 256);
}

// Plan for the largest equal part of the batch that fits; `more` returns the bytes of a shape in addition to
// its workspace.
CudnnPlan fitting_plan(const MakeGraph& make, AttentionShape& shape, const CudnnHandle& handle, int64_t room,
                       const std::function<int64_t(const AttentionShape&)>& more) {
  const int64_t all = shape.batch;
  CudnnPlan plan = plan_of(make, shape, handle);
  const auto needs = [&] { return plan.workspace_bytes() + more(shape); };
  while (needs() > room) {
    require(shape.batch > 1, Exit::internal, "it needs {} bytes of workspace a sequence, there are {}",
            needs(), room);
    int64_t less = std::max<int64_t>(1, std::min(shape.batch - 1, shape.batch * room / needs()));
    while (all % less) --less;
    shape.batch = less;
    plan = plan_of(make, shape, handle);
  }
  return plan;
}

Plans& plans_of(const AttentionShape& shape, CudaQueue& queue) {
  CudnnStream& cudnn = cudnn_of(queue);
  if (!cudnn.attention) cudnn.attention = std::make_shared<Known>();
  const QuerySums sums = cudnn.any_order ? QuerySums::any_order : QuerySums::in_order;
  const auto [at, added] = static_cast<Known*>(cudnn.attention.get())
                               ->try_emplace(shape, Plans{shape, shape, {}, {}, sums, {}, {}});
  Plans& p = at->second;
  if (!added) {
    require(p.forward.has_value(), Exit::internal, "its plans could not be made before");
    return p;
  }
  queue.use();
  CudnnPlan forward = fitting_plan(attention_graph, p.forward_shape, cudnn.handle, cudnn.room,
                                   [](const AttentionShape&) { return int64_t{0}; });
  p.backward = fitting_plan(
      [&](const AttentionShape& part) { return attention_gradient_graph(part, p.sums); }, p.backward_shape,
      cudnn.handle, cudnn.room,
      [&](const AttentionShape& part) { return p.sums == QuerySums::any_order ? bytes_of_sums(part) : 0; });
  p.forward = std::move(forward);
  return p;
}

const void* offset(const Tensor& x, int64_t elements) {
  return static_cast<const std::byte*>(x.raw()) + elements * size_of(x.dtype());
}

using Operands = std::vector<CudnnPlan::Operand>;

// Adds the operands of queries, keys and values in joined rows, for the sequences from `first` on.
void add_joined(Operands& operands, const std::array<int64_t, 3>& names, const Tensor& rows,
                const AttentionShape& s, int64_t first) {
  const int64_t head = s.dim, begin = first * s.seq * (s.heads + 2 * s.kv_heads) * head;
  operands.push_back({names[0], offset(rows, begin)});
  operands.push_back({names[1], offset(rows, begin + s.heads * head)});
  operands.push_back({names[2], offset(rows, begin + (s.heads + s.kv_heads) * head)});
}

// Runs the plan for s.batch sequences at a time. Both graphs have these operands, in different directions;
// add_others adds the operands of only one graph, for the sequences from `first` on.
template <class Add>
void run_parts(const AttentionForward& op, const CudnnPlan& plan, const AttentionShape& s, CudaQueue& queue,
               void* workspace, Add add_others) {
  const float scale = op.scale != 0 ? op.scale : 1.0f / std::sqrt(float(op.head_dim));
  const float lowest = -std::numeric_limits<float>::infinity();
  const CudnnHandle& handle = cudnn_of(queue).handle;
  cudnn_use_stream(handle.get(), queue.use());
  for (int64_t first = 0; first < op.batch; first += s.batch) {
    Operands operands = {{name::y, offset(op.y, first * s.seq * s.heads * s.dim)},
                         {name::lse, offset(op.lse, first * s.heads * s.seq)},
                         {name::scale, &scale},
                         {name::lowest, &lowest}};
    add_joined(operands, {name::q, name::k, name::v}, op.qkv, s, first);
    add_others(operands, first);
    plan.execute(handle.get(), operands, workspace);
  }
}

void run_in_library(const AttentionForward& op, Stream& stream) {
  CudaQueue& queue = cuda_queue(stream);
  const Plans& p = plans_of(shape_of(op), queue);
  run_parts(op, *p.forward, p.forward_shape, queue, queue.product_scratch().raw(), [](Operands&, int64_t) {});
}

void run_in_library(const AttentionBackward& op, Stream& stream) {
  CudaQueue& queue = cuda_queue(stream);
  const Plans& p = plans_of(shape_of(op.forward), queue);
  const AttentionShape& s = p.backward_shape;
  const void* delta = queue.scratch(s.batch * s.heads * s.seq * int64_t(sizeof(float)));
  const float one = 1;
  auto* base = static_cast<std::byte*>(queue.product_scratch().raw());
  const bool any_order = p.sums == QuerySums::any_order;
  const int64_t sums = any_order ? bytes_of_sums(s) : 0;
  run_parts(op.forward, *p.backward, s, queue, base + sums, [&](Operands& operands, int64_t first) {
    add_joined(operands, {name::dq, name::dk, name::dv}, op.dqkv, s, first);
    operands.push_back({name::dy, offset(op.dy, first * s.seq * s.heads * s.dim)});
    operands.push_back({name::delta, delta});
    operands.push_back({name::one, &one});
    if (!any_order) return;
    operands.push_back({name::dq_sums, base});
    cuda_check(cudaMemsetAsync(base, 0, size_t(sums), queue.use()), "cudaMemsetAsync", queue.device());
  });
}

Verdict trial(const AttentionShape& shape, Stream& stream) {
  if (shape.window || shape.documents) return "its graph knows no mask but the causal one";
  return attention_difference(
      shape,
      [&](const AttentionForward& op) {
        plans_of(shape, cuda_queue(stream));  // plan the full shape, not only the shape of its trial
        run_in_library(op, stream);
      },
      [&](const AttentionBackward& op) { run_in_library(op, stream); }, stream);
}

// The graphs promise 16-byte alignment.
bool aligned(const AttentionForward& op) { return all_aligned({op.y, op.lse, op.qkv}); }
bool aligned(const AttentionBackward& op) { return all_aligned({op.dqkv, op.dy}) && aligned(op.forward); }

std::optional<bool>& agrees_of(Plans& plans, const AttentionForward&) { return plans.forward_agrees; }
std::optional<bool>& agrees_of(Plans& plans, const AttentionBackward&) { return plans.backward_agrees; }

// Returns false if the own kernels must compute the op.
template <class Op>
bool in_library(const Op& op, Stream& stream) {
  CudaQueue& queue = cuda_queue(stream);
  const AttentionShape s = shape_of(forward_of(op));
  if (s.type == DType::fp32 || s.seq < kShortest || s.seq % 64 || s.dim % 8 || s.dim > kTensorCoreHeadDim)
    return false;
  if (!aligned(op)) return false;
  if (!proved("cuDNN", kCudnnSwitch, stream, [] { return cudnn_problem(); })) return false;
  const std::string name =
      fmt::format("cuDNN's attention{}{}", words(s), queue.any_order ? ", added in any order" : "");
  if (!proved(name, kCudnnSwitch, stream, [&] { return trial(s, stream); })) return false;
  try {
    std::optional<bool>& agrees = agrees_of(plans_of(s, queue), op);
    if (agrees && !*agrees) return false;
    run_in_library(op, stream);
    if (agrees || queue.capturing()) return true;
    const std::optional<Verdict> verdict = sampled_difference(op, stream);
    if (!verdict) return false;
    if (!verdict->empty()) report_unused(name, kCudnnSwitch, queue.device(), *verdict);
    agrees = verdict->empty();
    return *agrees;
  } catch (const Error& e) {  // another stream made its plans; this one failed
    if (e.exit() != Exit::internal) throw;
    return false;
  }
}

}  // namespace

bool library_attention(const AttentionForward& op, Stream& stream) { return in_library(op, stream); }
bool library_attention(const AttentionBackward& op, Stream& stream) { return in_library(op, stream); }

}  // namespace cleave::kernels::gpu
