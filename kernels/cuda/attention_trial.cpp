#include "kernels/cuda/attention_trial.h"

#include "device/copy.h"
#include "kernels/elementwise.h"

namespace cleave::kernels::gpu {
namespace {

// A few bf16 roundings of probabilities, outputs and gradients of order 1.
constexpr double kAttentionBound = 0x1p-6;
// For gradients of keys and values that several heads share: a library rounds each head's part to 16 bits
// before the sum; the own kernels round the sum once.
constexpr double kGroupedBound = 0x1p-5;
constexpr int64_t kMostSeq = 1024;

// Window and documents that hide some of `seq` positions if those of the shape hide some.
AttentionMask trial_mask(const AttentionShape& shape, int64_t seq, TrialSpace& space, Stream& stream) {
  AttentionMask mask{.window = shape.window ? std::min(shape.window, seq / 2 + 1) : 0};
  if (!shape.documents) return mask;
  std::vector<int32_t> starts(size_t(seq), 0);
  for (int64_t i = seq / 3; i < seq; ++i) starts[size_t(i)] = int32_t(i < seq - 5 ? seq / 3 : seq - 5);
  mask.documents = space.take(DType::int32, {1, seq});
  copy(mask.documents, Tensor(starts.data(), DType::int32, {1, seq}, MemoryKind::host), stream);
  stream.synchronize();  // `starts` is destroyed here
  return mask;
}

Verdict compare(const AttentionShape& shape, const std::function<void(const AttentionForward&)>& forward,
                const std::function<void(const AttentionBackward&)>& backward, Stream& stream) {
  TrialSpace space(stream);
  if (!space.enough()) return "the stream has too little scratch for a trial";
  const int64_t kv = std::min<int64_t>(2, shape.kv_heads), heads = shape.heads / shape.kv_heads * kv;
  const int64_t seq = std::min(shape.seq, kMostSeq), width = heads * shape.dim,
                joined = width + 2 * kv * shape.dim;
  const AttentionMask mask = trial_mask(shape, seq, space, stream);
  const DType type = shape.type;
  AttentionForward tried{.y = space.take(type, {seq, width}),
                         .lse = space.take(DType::fp32, {1, heads, seq}),
                         .qkv = space.random(type, {seq, joined}),
                         .batch = 1,
                         .seq = seq,
                         .heads = heads,
                         .kv_heads = kv,
                         .head_dim = shape.dim,
                         .mask = mask};
  AttentionForward own = tried;
  own.y = space.take(type, {seq, width}), own.lse = space.take(DType::fp32, {1, heads, seq});
  forward(tried);
  run_own(own, stream);
  for (const auto& [what, got, want] :
       {std::tuple{"the output", tried.y, own.y}, {"the row sums", tried.lse, own.lse}})
    if (const Verdict v = difference(what, got, want, kAttentionBound, stream); !v.empty()) return v;
  AttentionBackward tried_back{
      .dqkv = space.take(type, {seq, joined}), .dy = space.random(type, {seq, width}), .forward = own};
  AttentionBackward own_back = tried_back;
  own_back.dqkv = space.take(type, {seq, joined});
  backward(tried_back);
  run_own(own_back, stream);
  const auto columns = [&](const Tensor& rows, int64_t begin, int64_t end) {
    const Tensor part = space.take(type, {seq, end - begin});
    launch(CopyRuns{.y = part,
                    .x = rows.slice({begin, rows.numel()}),
                    .width = end - begin,
                    .outer = {seq, end - begin, joined}},
           stream);
    return part;
  };
  for (const auto& [what, begin, end, bound] :
       {std::tuple{"the queries' gradient", int64_t{0}, width, kAttentionBound},
        {"the keys' and values' gradient", width, joined, heads > kv ? kGroupedBound : kAttentionBound}})
    if (const Verdict v = difference(what, columns(tried_back.dqkv, begin, end),
                                     columns(own_back.dqkv, begin, end), bound, stream);
        !v.empty())
      return v;
  return {};
}

}  // namespace

Verdict attention_difference(const AttentionShape& shape,
                             const std::function<void(const AttentionForward&)>& forward,
                             const std::function<void(const AttentionBackward&)>& backward, Stream& stream) {
  try {
    return compare(shape, forward, backward, stream);
  } catch (const Error& e) {
    if (e.exit() != Exit::internal) throw;
    return e.what();
  }
}

std::string words(const AttentionShape& s) {
  return fmt::format(" in {} for {} x {} tokens, {} heads and {} key/value heads of {}{}{}", name_of(s.type),
                     s.batch, s.seq, s.heads, s.kv_heads, s.dim,
                     s.window ? fmt::format(", a window of {}", s.window) : "",
                     s.documents ? ", documents" : "");
}

bool on_hopper(CudaQueue& queue) {
  int major = 0;
  return cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, queue.device()) == cudaSuccess &&
         major == 9;
}

}  // namespace cleave::kernels::gpu
