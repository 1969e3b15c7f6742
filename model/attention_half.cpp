#include "model/attention_half.h"

#include <fmt/ranges.h>

namespace cleave::model {

AttentionHalf::AttentionHalf(const Config& config, const Axes& axes)
    : c_(config),
      axis_(axes.tensor),
      share_(share_of(c_, axis_)),
      attention_({.seq = c_.seq,
                  .heads = share_.heads,
                  .kv_heads = share_.kv_heads,
                  .head_dim = c_.head_dim,
                  .causal = c_.causal,
                  .window = c_.window,
                  .scale = c_.scale,
                  .cap = c_.cap,
                  .dropout = c_.dropout,
                  .first_head = axis_.rank() * share_.heads,
                  .all_heads = c_.heads},
                 axes.sequence),
      qkv_(projections(c_)),
      query_norm_(head_norm(c_.query_norm, share_.heads, 0)),
      key_norm_(head_norm(c_.key_norm, share_.kv_heads, share_.heads)) {
  const ParamSpec weight{c_.out + ".weight", {c_.width, c_.heads * c_.head_dim}, c_.out_init, true};
  Dense::Part made{.weight = Parameter(axis_.cut(weight, 1))};
  if (c_.out_bias) made.bias = Parameter({c_.out + ".bias", {c_.width}, {}, false});
  out_ = Dense({made}, axis_.rank() == 0 ? Dense::Bias::added : Dense::Bias::elsewhere);
}

AttentionHalf::Share AttentionHalf::share_of(const Config& c, const tensor_parallel::TensorAxis& axis) {
  const int64_t ranks = axis.size();
  Share share{.heads = axis.mine(c.heads, "heads").size(), .kv_heads = c.kv_heads / ranks};
  if (c.kv_heads % ranks == 0) return share;
  const bool separate = c.qkv.size() > 1;
  if (ranks % c.kv_heads != 0 || !separate) {
    std::vector<int64_t> sizes;
    for (int64_t n = 1; n <= c.heads; ++n)
      if (c.heads % n == 0 && (c.kv_heads % n == 0 || (separate && n % c.kv_heads == 0))) sizes.push_back(n);
    fail(Exit::usage,
         "tensor_parallel.autotp_size: {} key/value heads of {} heads are not divisible by {} ranks{} "
         "(expected {})",
         c.kv_heads, c.heads, ranks, separate ? "" : ", because they share one parameter with the queries",
         fmt::join(sizes, ", "));
  }
  share.kv_heads = 1;
  share.kv_used = Range{0, c.head_dim}.shifted(axis.rank() * c.kv_heads / ranks * c.head_dim);
  return share;
}

Dense AttentionHalf::projections(const Config& c) const {
  const int64_t q = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim;
  const auto part = [&](const std::string& name, const std::vector<int64_t>& blocks, Range used) {
    const int64_t out = std::accumulate(blocks.begin(), blocks.end(), int64_t{0});
    const auto mine = [&](ParamSpec p) {
      if (used.empty()) return Parameter(axis_.cut(p, 0, blocks));
      p.cuts.push_back({Axis::tensor});
      return Parameter(p);
    };
    Dense::Part made{.weight = mine({name + ".weight", {out, c.width}, c.init, true}), .used = used};
    if (c.qkv_bias) made.bias = mine({name + ".bias", {out}, {}, false});
    return made;
  };
  if (c.qkv.size() == 1) return Dense({part(c.qkv[0], {q, kv, kv}, {})});
  return Dense(
      {part(c.qkv[0], {q}, {}), part(c.qkv[1], {kv}, share_.kv_used), part(c.qkv[2], {kv}, share_.kv_used)});
}

std::optional<HeadNorm> AttentionHalf::head_norm(const std::string& name, int64_t heads,
                                                 int64_t first_head) const {
  if (name.empty()) return {};
  return HeadNorm({.name = name,
                   .head_dim = c_.head_dim,
                   .heads = heads,
                   .first_column = first_head * c_.head_dim,
                   .row_width = attention_.qkv_width(),
                   .eps = c_.norm_eps,
                   .offset = c_.norm_offset,
                   .partial = axis_.size() > 1});
}

void AttentionHalf::declare(std::vector<DeclaredUnit>& units) {
  qkv_.declare(units), out_.declare(units);
  for (auto* norm : {&query_norm_, &key_norm_})
    if (*norm) (*norm)->declare(units.front());
}

void AttentionHalf::attach(const config::AdapterRule& rule, std::vector<std::string>& linears) {
  qkv_.attach(rule, linears), out_.attach(rule, linears);
}

double AttentionHalf::flops(int64_t rows) const {
  return 12 * double(rows) * mean_keys(c_.seq, c_.window, c_.causal) * double(c_.heads) * double(c_.head_dim);
}

template <class Args>
Attention::Call AttentionHalf::call(const Args& a, bool train) const {
  CHECK(!c_.rotary || a.constants.size() >= 2 * c_.rotation + 2,
        "{}: missing cosines and sines (expected number {} of the model, got {} constants)", c_.name,
        c_.rotation, a.constants.size());
  return {a.scratch,   a.stream,
          c_.name,     c_.rotary ? a.constants.subspan(2 * c_.rotation, 2) : std::span<const Tensor>(),
          a.documents, train ? &a.position : nullptr};
}

void AttentionHalf::forward(const ForwardArgs& a) const {
  CHECK(c_.causal || !a.cache.defined(), "{}: texts that grow want causal attention", c_.name);
  const int64_t rows = axis_.all_rows(a.x.dim(0));
  Kept kept{.attention = a.cache.defined() ? attention_.keep_rows(a.keep, rows, a.x.dtype())
                                           : attention_.keep(a.keep, rows, a.x.dtype())};
  if (query_norm_) kept.queries = query_norm_->keep(a.keep, rows, a.x.dtype());
  if (key_norm_) kept.keys = key_norm_->keep(a.keep, rows, a.x.dtype());
  const CutLinear cut{axis_, a.stream, c_.name};
  const Tensor qkv = a.cache.defined() ? kept.attention.qkv : attention_.input(kept.attention, a.scratch);
  cut.forward_gathered(qkv_.bind(a, rows), qkv, a.x, a.scratch);
  if (query_norm_) query_norm_->forward(qkv, kept.queries, a.params, a.scratch, a.stream);
  if (key_norm_) key_norm_->forward(qkv, kept.keys, a.params, a.scratch, a.stream);
  if (a.cache.defined())
    attention_.forward(kept.attention, a.cache, call(a, false));
  else
    attention_.forward(kept.attention, qkv, call(a, a.train));
  const Linear out = out_.bind(a, rows);
  cut.forward_summed(out, a.y, axis_.all_rows_of(a.y, a.scratch), kept.attention.out);
  a.saved.put(this, kept);
}

void AttentionHalf::backward(const BackwardArgs& a) const {
  const Kept& kept = a.saved.get<Kept>(this);
  const Tensor out = kept.attention.out;
  const Bound bound{qkv_.bind(a, out.dim(0)), out_.bind(a, out.dim(0))};
  if (a.part == BackwardPart::weight)
    return backward_weight(a, bound, kept, a.for_weight->get<Waiting>(this));
  const bool both = a.part == BackwardPart::both;
  Waiting waiting;
  waiting.dqkv = (both ? a.scratch : *a.keep).take(out.dtype(), {out.dim(0), attention_.qkv_width()});
  // The gradient of attention's result is consumed before the partial sums of dx are written.
  const Tensor partial = axis_.all_rows_of(a.dx, a.scratch);
  const Tensor dout = out.numel() <= partial.numel() ? partial.slice({0, out.numel()}).view(out.shape())
                                                     : a.scratch.take(out.dtype(), out.shape());
  const CutLinear cut{axis_, a.stream, c_.name};
  const Tensor all_dy = cut.backward_gathered(bound.out, dout, a.dy, a.scratch);
  const CutLinear::Gathering x =
      both && qkv_.trains(a.grads) ? cut.start_gather(a.x, a.scratch) : CutLinear::Gathering();
  attention_.backward(waiting.dqkv, dout, kept.attention, call(a, true));
  if (query_norm_) waiting.query_norm = query_norm_->backward(waiting.dqkv, kept.queries, a);
  if (key_norm_) waiting.key_norm = key_norm_->backward(waiting.dqkv, kept.keys, a);
  const Event summed = cut.backward_summed(bound.qkv, a.dx, partial, waiting.dqkv);
  if (both)
    add_weights(a, bound, kept, {all_dy, a.dy}, waiting.dqkv, x);  // overlaps the sum of dx
  else
    a.for_weight->put(this, waiting);
  a.stream.wait(summed);
}

void AttentionHalf::backward_weight(const BackwardArgs& a, const Bound& bound, const Kept& kept,
                                    const Waiting& waiting) const {
  const CutLinear cut{axis_, a.stream, c_.name};
  const auto gather_for = [&](const Dense& product, Tensor rows) {
    return product.trains(a.grads) ? cut.start_gather(rows, a.scratch) : CutLinear::Gathering();
  };
  const CutLinear::Gathering dy = gather_for(out_, a.dy);
  a.stream.wait(dy.here);
  add_weights(a, bound, kept, {dy.all, a.dy}, waiting.dqkv, gather_for(qkv_, a.x));
  if (query_norm_) query_norm_->add(waiting.query_norm, a.grads, a.stream);
  if (key_norm_) key_norm_->add(waiting.key_norm, a.grads, a.stream);
}

void AttentionHalf::add_weights(const BackwardArgs& a, const Bound& bound, const Kept& kept,
                                const Linear::OutputGradient& dy, Tensor dqkv,
                                const CutLinear::Gathering& x) const {
  out_.backward_weight(bound.out, dy, kept.attention.out, a);
  a.stream.wait(x.here);
  qkv_.backward_weight(bound.qkv, dqkv, x.all, a);
}

}  // namespace cleave::model
