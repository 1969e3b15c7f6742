#include "zero/gradient_buckets.h"

#include <algorithm>

namespace cleave::zero {

GradientBuckets::GradientBuckets(Memory& memory, const StoreOptions& options, GradientShards& shards,
                                 Stream& compute, Stream& comm)
    : memory_(memory), options_(options), shards_(shards), compute_(compute), comm_(comm) {}

int GradientBuckets::add_pass(std::vector<Visit> visits) {
  Pass& pass = passes_.emplace_back(Pass{.visits = std::move(visits)});
  pass.last_backward.assign(size_t(shards_.units()), -1);
  for (int v = 0; v < int(pass.visits.size()); ++v) {
    if (!pass.visits[size_t(v)].backward) continue;
    int64_t numel = 0;
    for (int u : pass.visits[size_t(v)].units) {
      if (!shards_.trains(u)) continue;
      pass.last_backward[size_t(u)] = v;
      numel += round_up(shards_.apart_numel(u), 64);
    }
    apart_numel_ = std::max(apart_numel_, numel);
  }
  for (int v = 0; v < int(pass.visits.size()); ++v)
    for (int u : pass.visits[size_t(v)].units)
      if (pass.last_backward[size_t(u)] == v) pass.completes.push_back(u);
  lay_out(pass);
  return int(passes_.size()) - 1;
}

// A bucket lives from the first visit that writes it until its reduction, which may end one visit later.
void GradientBuckets::lay_out(Pass& pass) const {
  for (int u = 0; u < shards_.units(); ++u) {
    const int last = pass.last_backward[size_t(u)];
    if (last < 0 || !shards_.buckets(u)) continue;
    int first = last;
    for (int v = last; v >= 0; --v) {
      const std::vector<int>& units = pass.visits[size_t(v)].units;
      if (pass.visits[size_t(v)].backward && std::find(units.begin(), units.end(), u) != units.end())
        first = v;
    }
    const int64_t numel = shards_.unit(u).layout.numel();
    pass.buckets.add({u, first, last, {first, last + (options_.overlap ? 1 : 0), numel}});
  }
  pass.buckets.lay_out();
}

// Counts offsets in elements of the widest bucket type of all units.
void GradientBuckets::commit() {
  int64_t bucket = 0;
  for (const Pass& pass : passes_) bucket = std::max(bucket, pass.buckets.numel());
  const auto device = MemoryKind::device;
  buckets_ =
      memory_.allocate(device, Category::buckets, shards_.widest_bucket(), {bucket}, "gradient buckets");
  shards_.commit();
  if (apart_numel_ > 0)
    apart_ =
        memory_.allocate(device, Category::buckets, DType::fp32, {apart_numel_}, "gradients before rounding");
}

void GradientBuckets::begin_step(GradientUser* user) {
  user_ = user;
  complete_.clear();
}

void GradientBuckets::begin_pass(int pass, bool last) {
  pass_ = &passes_[size_t(pass)];
  last_ = last;
  // The buckets of the previous pass are free after its last reductions.
  const Event before = reduced_.empty() ? Event() : reduced_.back();
  reduced_.assign(pass_->visits.size() + 1, Event());
  reduced_[0] = before;
  back_.assign(pass_->visits.size(), Event());
  bring_back(0), bring_back(1);
  if (user_ && last_) user_->expect(pass_->completes);
}

// With overlap, two visits share no memory of buckets if they follow one another, and what lay there before
// is reduced earlier on comm: the gradients of a visit can return during the visit before it.
void GradientBuckets::bring_back(int visit) {
  if (!options_.overlap || visit >= int(pass_->visits.size())) return;
  bool any = false;
  for (int u : pass_->visits[size_t(visit)].units) {
    const Stay* stay = pass_->buckets.find(u, visit);
    if (!stay || stay->first_use != visit || !shards_.continues(u)) continue;
    shards_.bring_back(u, bucket(*stay));
    any = true;
  }
  if (any) back_[size_t(visit)] = comm_.record();
}

Tensor GradientBuckets::bucket(const Stay& s) const {
  const Tensor memory = buckets_.tensor().slice({s.offset, s.offset + shards_.unit(s.unit).layout.numel()});
  return {memory.raw(), shards_.bucket_type(s.unit), memory.shape(), memory.memory()};
}

GradientShards::WholeGradient GradientBuckets::whole(int visit, int unit) const {
  GradientShards::WholeGradient whole;
  if (const Stay* stay = pass_->buckets.find(unit, visit)) {
    whole.bucket = bucket(*stay);
    whole.first = visit == stay->first_use;
    whole.back = options_.overlap;
  }
  if (shards_.apart_numel(unit) > 0) whole.apart = apart(visit, unit);
  return whole;
}

std::vector<GradientSlot> GradientBuckets::slots(int visit) {
  // Buckets that share memory with this visit's were reduced at least two visits ago (one, without overlap).
  compute_.wait(reduced_[size_t(std::max(0, visit - (options_.overlap ? 1 : 0)))]);
  compute_.wait(back_[size_t(visit)]);
  std::vector<GradientSlot> slots;
  for (int u : pass_->visits[size_t(visit)].units) shards_.add_slots(u, whole(visit, u), slots);
  return slots;
}

Tensor GradientBuckets::apart(int visit, int unit) const {
  int64_t at = 0;
  for (int u : pass_->visits[size_t(visit)].units) {
    const int64_t numel = shards_.apart_numel(u);
    if (u == unit) return apart_.tensor().slice({at, at + numel});
    at += round_up(numel, 64);
  }
  fail(Exit::internal, "unit {} is not in visit {}", unit, visit);
}

void GradientBuckets::finish(int visit) {
  // reduced_[v + 1]: all reductions up to and including visit v are done.
  reduced_[size_t(visit) + 1] = reduced_[size_t(visit)];
  if (!pass_->visits[size_t(visit)].backward) return bring_back(visit + 2);
  for (int u : pass_->visits[size_t(visit)].units) shards_.give(u, whole(visit, u));
  bool any = false;
  for (int u : pass_->visits[size_t(visit)].units) {
    if (pass_->last_backward[size_t(u)] != visit) continue;
    const GradientShards::WholeGradient gradient = whole(visit, u);
    if (!gradient.bucket.defined() && !last_) continue;
    shards_.reduce(u, gradient);
    if (last_) shards_.finish(u);
    any = true;
  }
  if (any) reduced_[size_t(visit) + 1] = comm_.record();
  bring_back(visit + 2);
  if (!user_ || !last_) return;
  if (options_.overlap) hand_over();  // units of earlier visits, reduced during this visit
  for (int u : pass_->visits[size_t(visit)].units)
    if (pass_->last_backward[size_t(u)] == visit) complete_.emplace_back(u, reduced_[size_t(visit) + 1]);
  if (!options_.overlap) hand_over();
}

void GradientBuckets::hand_over() {
  for (const auto& [unit, reduced] : std::exchange(complete_, {})) {
    compute_.wait(reduced);
    user_->complete(unit);
  }
}

void GradientBuckets::end_step() {
  hand_over();
  user_ = nullptr;
}

}  // namespace cleave::zero
