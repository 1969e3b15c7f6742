#include "kernels/cpu/attention.h"

#include <cmath>

#include "device/team.h"
#include "kernels/cpu/bf16_products.h"
#include "kernels/cpu/bodies.h"
#include "kernels/cpu/operands.h"
#include "kernels/cpu/scratch.h"

namespace cleave::kernels::cpu {
namespace {

// An invalid start would hide a query from itself, or read keys before the sequence.
void check_documents(const int32_t* starts, int64_t batch, int64_t seq) {
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t i = 0, before = 0; i < seq; before = starts[b * seq + i++])
      CHECK(starts[b * seq + i] >= before && starts[b * seq + i] <= i,
            "attention: the document of position {} of sequence {} must begin in {} .. {}, got {}", i, b,
            before, i, starts[b * seq + i]);
}

AttentionArgs args_of(const AttentionForward& op) {
  AttentionArgs args{};
  args.y = vec(op.y), args.qkv = vec(op.qkv), args.lse = op.lse.as<float>();
  args.batch = op.batch, args.seq = op.seq, args.heads = op.heads, args.kv_heads = op.kv_heads;
  args.head_dim = op.head_dim;
  args.scale = op.scale != 0 ? op.scale : 1.0f / std::sqrt(float(op.head_dim));
  args.cap = op.cap;
  args.causal = op.mask.causal;
  args.window = op.mask.window_in(op.seq);
  const AttentionDropout& d = op.dropout;
  args.dropout = {d.p, d.philox.seed, d.philox.stream, d.first_sample, d.first_head, d.all_heads};
  if (op.mask.documents.defined()) {
    args.documents = op.mask.documents.as<int32_t>();
    check_documents(args.documents, op.batch, op.seq);
  }
  return args;
}

// Implementation of the op's products: that of bf16 x bf16 products for bf16 operands.
Bf16Way way_of(const AttentionForward& op) {
  return op.qkv.dtype() == DType::bf16 ? bf16_products().way : Bf16Way::as_fp32;
}

}  // namespace

void run_by(AttentionBody body, const AttentionForward& op) {
  AttentionArgs args = args_of(op);
  args.scratch_numel = attention_scratch(op.seq, op.head_dim);
  const Scratch scratch(args.scratch_numel * team_threads() * 4);
  args.scratch = scratch.floats();
  body(args);
}

void run_by(AttentionBody body, const AttentionBackward& op) {
  AttentionArgs args = args_of(op.forward);
  args.dy = vec(op.dy), args.dqkv = vec(op.dqkv);
  args.scratch_numel = attention_grad_scratch(args.seq, args.head_dim);
  const Scratch scratch(args.scratch_numel * team_threads() * 4);
  args.scratch = scratch.floats();
  body(args);
}

void run(const AttentionForward& op) {
  const Bf16Way way = way_of(op);
  run_by(way == Bf16Way::dots    ? v4::attention_dots
         : way == Bf16Way::tiles ? v4::attention_tiles
                                 : attention,
         op);
}

void run(const AttentionBackward& op) {
  const Bf16Way way = way_of(op.forward);
  run_by(way == Bf16Way::dots    ? v4::attention_grad_dots
         : way == Bf16Way::tiles ? v4::attention_grad_tiles
                                 : attention_grad,
         op);
}

}  // namespace cleave::kernels::cpu
