#include "kernels/kv_cache.h"

#include <cmath>
#include <cstring>

#include "device/team.h"
#include "kernels/cpu/operands.h"
#include "kernels/cpu/scratch.h"

namespace cleave::kernels::cpu {
namespace {

// An invalid position would access memory beyond the cache.
void check_rows(const TextRows& rows, const Tensor& keys) {
  const auto *texts = rows.texts.as<int32_t>(), *positions = rows.positions.as<int32_t>();
  for (int64_t r = 0; r < rows.texts.numel(); ++r)
    CHECK(texts[r] == -1 ||
              (texts[r] >= 0 && texts[r] < keys.dim(0) && positions[r] >= 0 && positions[r] < keys.dim(2)),
          "row {} is position {} of text {}; kept are {} positions of {} texts", r, positions[r], texts[r],
          keys.dim(2), keys.dim(0));
}

}  // namespace

void run(const WriteKvCache& op) {
  check_rows(op.rows, op.keys);
  const auto *texts = op.rows.texts.as<int32_t>(), *positions = op.rows.positions.as<int32_t>();
  const int64_t kv_heads = op.keys.dim(1), each = op.keys.dim(3) * size_of(op.keys.dtype()),
                stride = op.qkv.dim(1) * size_of(op.qkv.dtype());
  const auto* from = static_cast<const std::byte*>(op.qkv.raw()) + op.heads * each;
  for (int64_t r = 0; r < op.qkv.dim(0); ++r, from += stride)
    for (int64_t h = 0; texts[r] >= 0 && h < kv_heads; ++h) {
      const int64_t to = ((texts[r] * kv_heads + h) * op.keys.dim(2) + positions[r]) * each;
      std::memcpy(static_cast<std::byte*>(op.keys.raw()) + to, from + h * each, size_t(each));
      std::memcpy(static_cast<std::byte*>(op.values.raw()) + to, from + (kv_heads + h) * each, size_t(each));
    }
}

void run(const KvCacheAttention& op) {
  check_rows(op.rows, op.keys);
  const int64_t head_dim = op.keys.dim(3), each = kv_cache_attention_scratch(head_dim);
  const Scratch scratch(each * team_threads() * 4);
  kv_cache_attention({.y = vec(op.y),
                      .qkv = vec(op.qkv),
                      .keys = vec(op.keys),
                      .values = vec(op.values),
                      .texts = op.rows.texts.as<int32_t>(),
                      .positions = op.rows.positions.as<int32_t>(),
                      .rows = op.qkv.dim(0),
                      .cached_positions = op.keys.dim(2),
                      .heads = op.heads,
                      .kv_heads = op.keys.dim(1),
                      .head_dim = head_dim,
                      .window = op.window,
                      .scale = op.scale != 0 ? op.scale : 1.0f / std::sqrt(float(head_dim)),
                      .cap = op.cap,
                      .scratch = scratch.floats(),
                      .scratch_numel = each});
}

}  // namespace cleave::kernels::cpu
