#include "zero/recorded_visits.h"

#include <fmt/ranges.h>

#include <algorithm>
namespace cleave::zero {
namespace {

// Messages of a rank in a round other than a unit index.
constexpr int64_t kEnds = -1, kEndsWithGradients = -2, kFails = -3, kHasNoRoom = -4;

int64_t largest(const std::vector<int64_t>& sizes) {
  return sizes.empty() ? 0 : *std::max_element(sizes.begin(), sizes.end());
}

// Returns the elements of a block that fits any one unit, and all units if they do not exceed `most`.
int64_t block_of(const std::vector<int64_t>& sizes, int64_t most) {
  int64_t all = 0;
  for (const int64_t n : sizes) all += round_up(n, 64);
  return std::max(round_up(largest(sizes), 64), std::min(all, most));
}

// Merges the logs: every entry of each, in its log's order as far as earlier logs allow.
std::vector<int64_t> merged(const std::vector<std::vector<int64_t>>& logs) {
  std::vector<int64_t> all;
  for (const std::vector<int64_t>& log : logs) {
    auto at = all.begin();
    for (const int64_t entry : log) {
      const auto found = std::find(at, all.end(), entry);
      at = (found == all.end() ? all.insert(at, entry) : found) + 1;
    }
  }
  return all;
}

}  // namespace

RecordedVisits::RecordedVisits(Memory& memory, ParameterStore& store, comm::Communicator& agreement,
                               const RecordedOptions& options, Stream& compute, Stream& comm)
    : memory_(memory),
      store_(store),
      agreement_(agreement),
      options_(options),
      compute_(compute),
      comm_(comm) {}

void RecordedVisits::commit() {
  const WeightShards& weights = store_.weights();
  const GradientShards& gradients = store_.gradients();
  wholes_.resize(size_t(store_.units())), gradients_.resize(size_t(store_.units()));
  std::vector<int64_t> whole, bucket, apart;
  for (int u = 0; u < store_.units(); ++u) {
    const int64_t numel = store_.layout(u).numel();
    wholes_[size_t(u)].gathers = weights.unit(u).sharding.gathers();
    if (wholes_[size_t(u)].gathers) whole.push_back(numel);
    if (gradients.buckets(u)) bucket.push_back(numel);
    if (const int64_t n = gradients.apart_numel(u); n > 0) apart.push_back(n);
    finishes_early_ = finishes_early_ || gradients.can_reopen(u);
  }
  int64_t gathered = 0;
  for (const int64_t n : whole) gathered += round_up(n, 64);
  keeps_ = gathered <= block_of(whole, options_.gathered_numel);
  const bool alone = agreement_.size() == 1;
  const auto allocate = [&](Category category, DType type, const std::vector<int64_t>& sizes, int64_t most,
                            RangeAllocator& ranges, Range* spare, const char* what) {
    const int64_t block = block_of(sizes, most), more = spare && !alone ? round_up(largest(sizes), 64) : 0;
    ranges = RangeAllocator(block);
    if (spare) *spare = {block, block + more};
    return memory_.allocate(MemoryKind::device, category, type, {block + more}, what);
  };
  gathered_ = allocate(Category::gathered, store_.options().weights, whole, options_.gathered_numel,
                       whole_ranges_, &spare_whole_, "gathered units");
  for (int u = 0; keeps_ && u < store_.units(); ++u)
    if (wholes_[size_t(u)].gathers) wholes_[size_t(u)].range = *whole_ranges_.take(store_.layout(u).numel());
  store_.weights().commit();
  buckets_ = allocate(Category::buckets, gradients.widest_bucket(), bucket, options_.bucket_numel,
                      bucket_ranges_, &spare_bucket_, "gradient buckets");
  store_.gradients().commit();
  if (!apart.empty())
    apart_ = allocate(Category::buckets, DType::fp32, apart, options_.bucket_numel, apart_ranges_, nullptr,
                      "gradients before rounding");
}

void RecordedVisits::begin_step(double unscale, GradientUser* user) {
  store_.begin_step(unscale);
  in_step_ = true;
  comm_.wait(compute_.record());  // the last update has read the sums and zeros that are written next
  user_ = user;
  reopened_ = 0, had_last_ = false;
  for (Gradient& g : gradients_) g.summed = g.finished = false;
}

void RecordedVisits::discard_gradients() {
  compute_.wait(comm_.record());  // sums that have begun are written again
  for (size_t u = 0; u < gradients_.size(); ++u) {
    Gradient& g = gradients_[u];
    if ((g.open && store_.gradients().buckets(int(u))) || g.ahead) bucket_ranges_.give_back(g.bucket);
    g = {};
  }
  store_.gradients().discard();
}

void RecordedVisits::begin_pass(int kind, bool last) {
  store_.weights().begin_unknown_pass();
  last_ = last && finishes_early_ && !had_last_;
  if (last_) {
    had_last_ = true;
    kind = -1 - kind;  // a record of its own
    for (Gradient& g : gradients_) g.complete = false;
  }
  record_ = &records_[kind], next_ = 0, departed_ = false;
  expected_ = &uses_[kind];
  expected_->resize(wholes_.size());
  used_.clear();
  // Keeps the record equal on all ranks: a pass starts without gathered units, or with the same ones.
  const bool stay =
      keeps_ && std::exchange(version_, store_.weights().version()) == store_.weights().version();
  for (Whole& w : wholes_) {
    w.uses = 0;
    if (!w.there) continue;
    w.fresh = w.there = w.kept = stay;
    if (!keeps_) whole_ranges_.give_back(w.range);
  }
}

std::vector<Tensor> RecordedVisits::acquire(int unit) {
  Whole& w = wholes_[size_t(unit)];
  Tensor whole = store_.weights().shard(unit);
  if (w.gathers) {
    if (!w.there) need(unit);
    if (std::exchange(w.fresh, false)) used_.push_back(unit);
    compute_.wait(w.ready);
    whole = gathered_.tensor().slice(w.range);
    w.used = ++now_;
  }
  ++w.users, ++w.uses;
  std::vector<Tensor> params;
  store_.weights().add_views(unit, whole, params);
  run_ahead();
  return params;
}

void RecordedVisits::release(int unit) {
  Whole& w = wholes_[size_t(unit)];
  CHECK(w.users > 0, "unit {} was released more often than acquired", store_.layout(unit).name());
  --w.users;
  released_ = compute_.record();
}

// Enqueues the record up to and including the next gather of the unit. Returns false if the rest has none.
bool RecordedVisits::follow_to(int unit) {
  const auto at = std::find(record_->begin() + int64_t(next_), record_->end(), unit);
  if (at == record_->end()) return false;
  catch_up(size_t(at - record_->begin()));
  ++next_;
  fetch(unit, true);
  return true;
}

// Joins the collectives of units that this rank skipped.
void RecordedVisits::catch_up(size_t end) {
  while (next_ < end) {
    const int64_t entry = (*record_)[next_];
    if (entry >= 0 && alone(int(entry)))
      ++next_;
    else
      follow();
  }
}

void RecordedVisits::follow() {
  const int64_t entry = (*record_)[next_++];
  if (entry < 0)
    sum(int(-1 - entry));
  else
    fetch(int(entry), false);
}

// Enqueues the next entries of the record as far as possible: sums need a complete gradient, gathers need
// room.
void RecordedVisits::run_ahead() {
  for (; next_ < record_->size(); follow()) {
    const int64_t entry = (*record_)[next_];
    const auto unit = size_t(entry < 0 ? -1 - entry : entry);
    if (entry < 0) {
      if (!gradients_[unit].complete) return;
    } else if (!wholes_[unit].there) {
      const int64_t numel = store_.layout(int(unit)).numel(), ahead = numel_ahead();
      if (ahead > 0 && ahead + numel > options_.prefetch_numel) return;
      if (options_.prefetch_numel == 0 || !has_room(numel, Evicts::used)) return;
    } else if (!keeps_ && !alone(int(unit))) {
      return;  // resident since an earlier use in this pass
    }
  }
}

// Returns the elements of the gathered units that this pass has not used yet.
int64_t RecordedVisits::numel_ahead() const {
  int64_t numel = 0;
  for (size_t u = 0; u < wholes_.size(); ++u)
    if (wholes_[u].there && wholes_[u].fresh && !wholes_[u].kept) numel += store_.layout(int(u)).numel();
  return numel;
}

void RecordedVisits::need(int unit) {
  const Whole& w = wholes_[size_t(unit)];
  if (follow_to(unit)) return;
  ++unforeseen_;
  catch_up(record_->size());
  while (!w.there) round(unit);
}

bool RecordedVisits::alone(int unit) const {
  return store_.weights().unit(unit).sharding.gather_on_use->size() == 1;
}

bool RecordedVisits::has_room(int64_t numel, Evicts evicts) {
  while (!keeps_) {
    if (const std::optional<Range> range = whole_ranges_.take(numel)) {
      whole_ranges_.give_back(*range);
      return true;
    }
    Whole* oldest = nullptr;
    for (size_t u = 0; u < wholes_.size(); ++u) {
      Whole& w = wholes_[u];
      const bool needed = evicts == Evicts::used && (w.fresh || w.uses < (*expected_)[u]);
      if (w.there && w.users == 0 && !needed && (!oldest || w.used < oldest->used)) oldest = &w;
    }
    if (evicts == Evicts::none || !oldest) return false;
    whole_ranges_.give_back(oldest->range);
    oldest->there = oldest->fresh = false;
  }
  return true;
}

// `needed`: evicts other units to make room. Otherwise fetches only if there is room; without room the rank
// only joins the collective, which other ranks need.
void RecordedVisits::fetch(int unit, bool needed) {
  Whole& w = wholes_[size_t(unit)];
  const int64_t numel = store_.layout(unit).numel();
  if (w.there && (keeps_ || alone(unit))) return;
  if (!w.there && has_room(numel, needed ? Evicts::any : Evicts::none)) {
    if (!keeps_) w.range = *whole_ranges_.take(numel);
    w.there = w.fresh = true, w.kept = false;
    w.used = ++now_;
    w.ready = store_.weights().fetch(unit, gathered_.tensor().slice(w.range), released_);
    return;
  }
  if (needed && !w.there) fail_for_room(unit, false);
  if (!alone(unit))
    store_.weights().fetch(unit, gathered_.tensor().slice(Range{0, numel}.shifted(spare_whole_.begin)), {});
}

// All ranks exchange their needs and serve all of them. Returns 0 if a rank needed a unit or had no room, and
// the smallest message otherwise.
int64_t RecordedVisits::round(int64_t message) {
  std::vector<int64_t> said, all = from_all({message, reopened_});
  for (size_t i = 0; i < all.size(); i += 2)
    said.push_back(all[i]), reopened_ = std::max(reopened_, all[i + 1]);
  std::sort(said.begin(), said.end());
  said.erase(std::unique(said.begin(), said.end()), said.end());
  departed_ = departed_ || said != std::vector{kEnds};
  if (said.front() == kHasNoRoom) sum_pending(false);
  for (const int64_t unit : said)
    if (unit >= 0) fetch(int(unit), unit == message);
  return said.back() >= 0 || said.front() == kHasNoRoom ? 0 : said.front();
}

// Gathers the messages rank by rank; all ranks send the same number.
std::vector<int64_t> RecordedVisits::from_all(std::vector<int64_t> mine) {
  const int ranks = agreement_.size();
  if (ranks == 1 || mine.empty()) return mine;
  const auto count = int64_t(mine.size());
  std::vector<int64_t> all(size_t(ranks * count));
  agreement_.all_gather(Tensor(all.data(), DType::int64, {ranks * count}, MemoryKind::host),
                        Tensor(mine.data(), DType::int64, {count}, MemoryKind::host), on_host_,
                        {.what = "needs of ranks"});
  return all;
}

Tensor RecordedVisits::bucket_of(int unit, Range r) const {
  const Tensor memory = buckets_.tensor().slice({r.begin, r.begin + store_.layout(unit).numel()});
  return {memory.raw(), store_.gradients().bucket_type(unit), memory.shape(), memory.memory()};
}

GradientShards::WholeGradient RecordedVisits::open(int unit) {
  Gradient& g = gradients_[size_t(unit)];
  const int64_t numel = store_.layout(unit).numel();
  const auto take = [&](RangeAllocator& ranges) {
    std::optional<Range> range = ranges.take(numel);
    if (!range) drop_ahead(), range = ranges.take(numel);
    // Makes room by the record's next sums, then by a round.
    while (!range && next_ < record_->size()) follow(), range = ranges.take(numel);
    for (const bool every_one : {false, true}) {
      if (range) break;
      ++unforeseen_;
      for (Gradient& other : gradients_) other.complete = other.complete || (every_one && !other.written);
      round(kHasNoRoom);
      range = ranges.take(numel);
    }
    if (!range) fail_for_room(unit, true);
    return *range;
  };
  if (!g.open && store_.gradients().buckets(unit)) {
    const bool back = std::exchange(g.ahead, false);
    if (!back) g.bucket = take(bucket_ranges_);
    std::erase_if(draining_, [&](const Draining& d) {
      // A rank alone continues a gradient from its home.
      const bool same = d.unit == unit || (d.bucket.begin < g.bucket.end && g.bucket.begin < d.bucket.end);
      if (same) compute_.wait(d.done);
      return same;
    });
    if (back) compute_.wait(g.back);
    g.whole = {.bucket = bucket_of(unit, g.bucket), .back = back};
  }
  if (const int64_t apart = store_.gradients().apart_numel(unit); apart > 0) {
    g.apart = take(apart_ranges_);
    g.whole.apart = apart_.tensor().slice({g.apart.begin, g.apart.begin + apart});
  }
  return g.whole;
}

// A rank alone continues gradients of earlier passes. The next one in the record returns from its home during
// the backward before it.
void RecordedVisits::bring_back_ahead() {
  for (size_t at = next_; at < record_->size(); ++at) {
    const auto unit = int(-1 - (*record_)[at]);
    if (unit < 0 || gradients_[size_t(unit)].open) continue;
    Gradient& g = gradients_[size_t(unit)];
    if (g.ahead || !store_.gradients().buckets(unit) || !store_.gradients().continues(unit)) return;
    const std::optional<Range> range = bucket_ranges_.take(store_.layout(unit).numel());
    if (!range) return;
    g.bucket = *range, g.ahead = true;
    store_.gradients().bring_back(unit, bucket_of(unit, g.bucket));
    g.back = comm_.record();
    return;
  }
}

void RecordedVisits::drop_ahead() {
  for (size_t u = 0; u < gradients_.size(); ++u) {
    Gradient& g = gradients_[u];
    if (!std::exchange(g.ahead, false)) continue;
    bucket_ranges_.give_back(g.bucket);
    draining_.push_back({int(u), g.bucket, g.back});
  }
}

std::vector<GradientSlot> RecordedVisits::gradients(int unit) {
  std::vector<GradientSlot> slots;
  Gradient& g = gradients_[size_t(unit)];
  if (g.finished) reopen(unit);
  const bool trains = store_.gradients().trains(unit);
  store_.gradients().add_slots(unit, trains ? open(unit) : GradientShards::WholeGradient{}, slots);
  g.open = g.written = trains, g.complete = false;
  return slots;
}

void RecordedVisits::give(int unit) {
  if (!store_.gradients().trains(unit)) return;
  Gradient& g = gradients_[size_t(unit)];
  CHECK(g.open, "unit {} was given without slots", store_.layout(unit).name());
  store_.gradients().give(unit, g.whole);
  if (g.whole.apart.defined()) apart_ranges_.give_back(g.apart);
  g.whole.first = g.written = false;
}

void RecordedVisits::complete(int unit) {
  if (!store_.gradients().trains(unit) || !gradients_[size_t(unit)].open) return;
  gradients_[size_t(unit)].complete = true;
  if (!store_.gradients().buckets(unit) && !(last_ && store_.gradients().can_reopen(unit))) return;
  used_.push_back(sum_of(unit));
  run_ahead();
  bring_back_ahead();
}

// Joins the sum over all ranks: with this rank's complete gradient, or with zeros.
void RecordedVisits::sum(int unit) {
  if (!store_.gradients().buckets(unit)) return finish(unit);
  Gradient& g = gradients_[size_t(unit)];
  if (g.open && g.complete) {
    store_.gradients().reduce(unit, g.whole);
    bucket_ranges_.give_back(g.bucket);
    draining_.push_back({unit, g.bucket, comm_.record()});
    g = {};
  } else if (store_.gradients().unit(unit).sharding.reduce_each_micro->size() > 1) {
    store_.gradients().join(unit, bucket_of(unit, spare_bucket_));
  } else {
    return;
  }
  g.summed = true;
}

// Sums the gradient of a step over its ranks, which all call this.
void RecordedVisits::finish(int unit) {
  Gradient& g = gradients_[size_t(unit)];
  if (g.finished) return;
  const bool buckets = store_.gradients().buckets(unit);
  if (!(buckets ? g.summed : g.open))
    store_.gradients().clear(unit);  // no rank, or another one, gave it
  else if (!buckets)
    store_.gradients().reduce(unit, g.whole);
  store_.gradients().finish(unit);
  g.open = false, g.finished = true;
}

void RecordedVisits::reopen(int unit) {
  Gradient& g = gradients_[size_t(unit)];
  store_.gradients().reopen(unit);
  g.open = true, g.finished = false;
  reopened_ = 1;
}

void RecordedVisits::reopen_all() {
  finishes_early_ = false;
  for (int u = 0; u < store_.units(); ++u)
    if (gradients_[size_t(u)].finished) reopen(u);
}

// Sums the gradients that any rank holds in a bucket; `every_one`: at the end of the pass, including
// gradients that are not marked complete.
void RecordedVisits::sum_pending(bool every_one) {
  std::vector<int64_t> pending(gradients_.size(), 0);
  for (size_t u = 0; u < gradients_.size(); ++u) {
    Gradient& g = gradients_[u];
    g.complete = g.open && (g.complete || every_one);
    pending[u] = g.complete && store_.gradients().buckets(int(u));
  }
  const std::vector<int64_t> all = from_all(pending);
  for (size_t u = 0; u < gradients_.size(); ++u)
    for (size_t at = u; at < all.size(); at += gradients_.size())
      if (all[at] != 0) {
        sum(int(u));
        break;
      }
}

bool RecordedVisits::end_pass(bool fails) {
  catch_up(record_->size());
  for (size_t u = 0; u < wholes_.size(); ++u) (*expected_)[u] = wholes_[u].uses;
  const auto pending = [&] {
    for (size_t u = 0; u < gradients_.size(); ++u)
      if (store_.gradients().buckets(int(u)) ? gradients_[u].open
                                             : last_ && gradients_[u].complete && !gradients_[u].finished &&
                                                   store_.gradients().can_reopen(int(u)))
        return true;
    return false;
  };
  int64_t said = 0;
  while ((said = round(fails ? kFails : pending() ? kEndsWithGradients : kEnds)) >= 0) {
  }
  if (said == kEndsWithGradients) sum_pending(true);
  if (reopened_ > 0 && finishes_early_) reopen_all();
  if (departed_) record_anew();
  // Errors within a step appear at its end.
  if (!in_step_ && store_.weights().on_disk()) comm_.synchronize();
  return said != kFails;
}

void RecordedVisits::finish_gradients() {
  for (int u = 0; u < store_.units(); ++u)
    if (store_.gradients().trains(u)) finish(u);
}

void RecordedVisits::record_anew() {
  const auto mine = int64_t(used_.size());
  const std::vector<int64_t> sizes = from_all({mine});
  const int64_t most = largest(sizes);
  std::vector<int64_t> padded = used_;
  padded.resize(size_t(most));
  const std::vector<int64_t> all = from_all(padded);
  std::vector<Log> logs;
  for (size_t r = 0; r < sizes.size(); ++r)
    logs.emplace_back(all.begin() + int64_t(r) * most, all.begin() + int64_t(r) * most + sizes[r]);
  *record_ = merged(logs);
  // A sum of the step is made once, when the last rank has its gradient for the last time.
  std::vector<bool> later(gradients_.size());
  for (size_t at = record_->size(); at-- > 0;) {
    const int64_t entry = (*record_)[at];
    if (entry >= 0 || store_.gradients().buckets(int(-1 - entry))) continue;
    if (later[size_t(-1 - entry)]) record_->erase(record_->begin() + int64_t(at));
    later[size_t(-1 - entry)] = true;
  }
}

void RecordedVisits::end_step() {
  store_.wait_for_gradients();
  if (user_) {
    std::vector<int> units;
    for (int u = 0; u < store_.units(); ++u)
      if (store_.gradients().trains(u)) units.push_back(u);
    user_->expect(units);
    for (const int u : units) user_->complete(u);
  }
  user_ = nullptr, in_step_ = false;
  store_.weights().end_step();
}

void RecordedVisits::fail_for_room(int unit, bool gradient) const {
  std::vector<std::string> there;
  for (size_t u = 0; u < wholes_.size(); ++u)
    if (gradient ? gradients_[u].open : wholes_[u].there) there.push_back(store_.layout(int(u)).name());
  fail(Exit::memory,
       "no room for the {} of {}, {} elements, in addition to those in use ({}): {} elements fit; raise {}",
       gradient ? "gradients" : "parameters", store_.layout(unit).name(), store_.layout(unit).numel(),
       fmt::join(there, ", "), gradient ? spare_bucket_.begin : spare_whole_.begin,
       gradient ? "zero_optimization.reduce_bucket_size" : "zero_optimization.stage3_max_live_parameters");
}

}  // namespace cleave::zero
