#include "model/block.h"

#include <algorithm>

#include "device/work_log.h"
#include "kernels/activation.h"
#include "kernels/fp8.h"
#include "model/fp8.h"

namespace cleave::model {

Block::Block(std::string name, Branch attention, Branch mlp, const RowDropout& dropout, bool biases_last)
    : name_(std::move(name)),
      attention_(std::move(attention)),
      mlp_(std::move(mlp)),
      dropout_(dropout),
      biases_last_(biases_last) {
  declare();
}

void Block::declare() {
  declared_ = {{name_}};
  for (Branch* b : {&attention_, &mlp_}) {
    if (b->before) b->before->declare(declared_.front());
    b->half->declare(declared_);
    if (b->after) b->after->declare(declared_.front());
  }
  std::vector<Parameter*>& own = declared_.front().params;
  if (biases_last_)
    std::stable_partition(own.begin(), own.end(),
                          [](const Parameter* p) { return !p->spec().name.ends_with(".bias"); });
  units_ = settle(declared_);
}

void Block::attach(const config::AdapterRule& rule, std::vector<std::string>& linears) {
  for (Branch* b : {&attention_, &mlp_}) b->half->attach(rule, linears);
  declare();
}

bool Block::use_fp8(const config::Fp8Rule& rule) {
  int64_t layers = 0;
  for (Branch* b : {&attention_, &mlp_}) b->half->use_fp8(layers);
  if (rule.scaling == config::Fp8Scaling::delayed) states_ = {fp8_state(name_, layers, rule)};
  return layers > 0;
}

void Block::join(std::span<const StateViews> states, Stream& stream) const {
  for (const StateViews& s : states)
    kernels::launch(kernels::PushFp8History{.history = s.lasting, .seen = s.seen}, stream);
}

double Block::flops(const TensorSpec& in) const {
  return Layer::flops(in) + attention_.half->flops(in.shape[0]) + mlp_.half->flops(in.shape[0]);
}

void Block::drop(const Branch& branch, Tensor y, Tensor x, const Position& at, Stream& stream) const {
  dropout_.run(y, x, at, fmt::format("{}.{}", name_, branch.name), stream);
}

Tensor Block::dropped(const Branch& branch, Tensor dy, const BackwardArgs& a) const {
  if (dropout_.p == 0) return dy;
  const Tensor out = a.scratch.take(dy.dtype(), dy.shape());
  drop(branch, out, dy, a.position, a.stream);
  return out;
}

void Block::forward(const ForwardArgs& a) const {
  Kept kept;
  kept.middle = a.keep.take(a.x.dtype(), a.x.shape());
  // y holds the output of each half in turn until it is summed.
  kept.attention = forward(attention_, {.x = a.x}, a);
  kept.mlp = forward(mlp_, {.x = a.y, .residual = a.x, .sum = kept.middle}, a);
  kernels::launch(kernels::Add{.y = a.y, .a = kept.middle, .b = a.y}, a.stream);
  a.saved.put(this, kept);
}

Tensor Block::before(const Branch& branch, const Norm::Rows& rows, KeptOfBranch& kept,
                     const ForwardArgs& a) const {
  if (!branch.before) {
    if (!rows.residual.defined()) return rows.x;
    kernels::launch(kernels::Add{.y = rows.sum, .a = rows.x, .b = rows.residual}, a.stream);
    return rows.sum;
  }
  const Tensor normed = (a.lean ? a.scratch : a.keep).take(a.x.dtype(), a.x.shape());
  kept.before = branch.before->keep(a.keep, a.x.dim(0));
  if (!a.lean) kept.normed = normed;
  branch.before->forward(normed, rows, kept.before, a.params, a.stream);
  return normed;
}

Block::KeptOfBranch Block::forward(const Branch& branch, const Norm::Rows& rows, const ForwardArgs& a) const {
  const int64_t mark = a.scratch.mark();  // both branches use the same scratch, one after the other
  KeptOfBranch kept;
  ForwardArgs half = a;
  half.x = before(branch, rows, kept, a);
  if (branch.after) half.y = kept.out = a.keep.take(a.x.dtype(), a.x.shape());
  branch.half->forward(half);
  if (branch.after) {
    kept.after = branch.after->keep(a.keep, a.x.dim(0));
    branch.after->forward(a.y, {.x = kept.out}, kept.after, a.params, a.stream);
  }
  if (a.train) drop(branch, a.y, a.y, a.position, a.stream);
  a.scratch.release(mark);
  return kept;
}

void Block::backward(const BackwardArgs& a) const {
  const Kept& kept = a.saved.get<Kept>(this);
  if (a.part == BackwardPart::weight) {
    const Waiting& waiting = a.for_weight->get<Waiting>(this);
    backward_weight(mlp_, waiting.mlp, a.dy, a);
    backward_weight(attention_, waiting.attention, waiting.dmiddle, a);
    return;
  }
  const bool split = a.part == BackwardPart::input;
  Waiting waiting;
  waiting.dmiddle = (split ? *a.keep : a.scratch).take(a.x.dtype(), a.x.shape());
  waiting.mlp = backward(mlp_, kept.mlp, {waiting.dmiddle, a.dy, kept.middle}, a);
  waiting.attention = backward(attention_, kept.attention, {a.dx, waiting.dmiddle, a.x}, a);
  if (split) a.for_weight->put(this, waiting);
}

Tensor Block::behind(const Branch& branch, const KeptOfBranch& kept, Tensor dy, WaitingOfBranch& waiting,
                     const BackwardArgs& a) const {
  const Tensor dnorm = dropped(branch, dy, a);
  if (!branch.after) return dnorm;
  waiting.after = branch.after->gradients(a);
  waiting.dout = (a.part == BackwardPart::input ? *a.keep : a.scratch).take(dy.dtype(), dy.shape());
  branch.after->backward({.dx = waiting.dout, .dy = dnorm, .x = kept.out}, kept.after, a.params,
                         waiting.after, a.stream);
  return waiting.dout;
}

Block::WaitingOfBranch Block::backward(const Branch& branch, const KeptOfBranch& kept, const Sum& sum,
                                       const BackwardArgs& a) const {
  WaitingOfBranch waiting{};
  waiting.normed = branch.before ? kept.normed : sum.x;
  if (branch.before) waiting.before = branch.before->gradients(a);
  const int64_t mark = a.scratch.mark();
  const Tensor dnorm = a.scratch.take(sum.x.dtype(), sum.x.shape());
  if (!waiting.normed.defined()) {
    Arena& arena = a.part == BackwardPart::input ? *a.keep : a.scratch;
    waiting.normed = arena.take(sum.x.dtype(), sum.x.shape());
    const WorkLog::Repeats repeats;
    branch.before->forward(waiting.normed, {.x = sum.x}, kept.before, a.params, a.stream);
  }
  BackwardArgs half = a;
  half.dx = dnorm, half.dy = behind(branch, kept, sum.dy, waiting, a), half.x = waiting.normed;
  branch.half->backward(half);
  if (branch.before)
    branch.before->backward({.dx = sum.dx, .dy = dnorm, .x = sum.x, .dresidual = sum.dy}, kept.before,
                            a.params, waiting.before, a.stream);
  else
    kernels::launch(kernels::Add{.y = sum.dx, .a = dnorm, .b = sum.dy}, a.stream);
  a.scratch.release(mark);
  return waiting;
}

void Block::backward_weight(const Branch& branch, const WaitingOfBranch& waiting, Tensor dy,
                            const BackwardArgs& a) const {
  const int64_t mark = a.scratch.mark();
  BackwardArgs half = a;
  half.dy = branch.after ? waiting.dout : dropped(branch, dy, a), half.x = waiting.normed;
  branch.half->backward(half);
  if (branch.before) branch.before->add(waiting.before, a.grads, a.stream);
  if (branch.after) branch.after->add(waiting.after, a.grads, a.stream);
  a.scratch.release(mark);
}

}  // namespace cleave::model
