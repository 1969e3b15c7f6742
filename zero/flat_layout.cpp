#include "zero/flat_layout.h"

#include <algorithm>

namespace cleave::zero {

FlatLayout::FlatLayout(UnitSpec spec, int shards, const DecayRule& decays)
    : spec_(std::move(spec)), ranges_(spec_.params.size()) {
  CHECK(shards >= 1, "unit {}: {} shards", spec_.name, shards);
  struct Segment {
    bool decay, split;
  };
  for (const Segment part : {Segment{true, false}, {true, true}, {false, true}, {false, false}}) {
    const int64_t begin = used_;
    for (size_t i = 0; i < ranges_.size(); ++i) {
      const ParamSpec& p = spec_.params[i];
      if (p.decay != part.decay || bool(p.split) != part.split) continue;
      ranges_[i] = {used_, used_ + p.numel()};
      used_ = ranges_[i].end;
    }
    if (part.split)
      split_ = {part.decay ? begin : split_.begin, used_};
    else if (used_ > begin)
      replicated_.push_back({begin, used_});
  }
  numel_ = round_up(used_, shards);
  for (const ParamSpec& p : spec_.params) decays_.push_back(decays.applies_to(p));
  find_decay_ranges();
}

// What pads the unit is 0 and goes with the last parameter.
void FlatLayout::find_decay_ranges() {
  std::vector<int> order(ranges_.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int a, int b) { return range(a).begin < range(b).begin; });
  for (const int p : order) {
    if (decay_ranges_.empty() || decay_ranges_.back().decay != decays(p))
      decay_ranges_.push_back({range(p), decays(p)});
    decay_ranges_.back().range.end = range(p).end;
  }
  if (!decay_ranges_.empty()) decay_ranges_.back().range.end = numel_;
}

std::vector<FlatLayout::DecayRange> FlatLayout::decay_ranges(Range slice) const {
  std::vector<DecayRange> out;
  for (const DecayRange& g : decay_ranges_) {
    const Range part = intersect(g.range, slice);
    if (!part.empty()) out.push_back({part.shifted(-slice.begin), g.decay});
  }
  return out;
}

std::vector<Range> FlatLayout::replicated(Range slice) const {
  std::vector<Range> out;
  for (const Range& r : replicated_) {
    const Range part = intersect(r, slice);
    if (!part.empty()) out.push_back(part.shifted(-slice.begin));
  }
  return out;
}

std::vector<Range> FlatLayout::summed(Range slice, bool cut_rows) const {
  if (frozen()) return {};
  if (cut_rows) return replicated(slice);
  std::vector<Range> out;
  for (int i = 0; i < params(); ++i) {
    const Range part = intersect(range(i), slice);
    if (!part.empty() && param(i).partial) out.push_back(part.shifted(-slice.begin));
  }
  return out;
}

namespace {

// Appends the pieces of elements `part` of a split parameter: of each block of each outer index a run of them
// is consecutive in the whole tensor.
void add_split(std::vector<FlatLayout::Piece>& out, int index, const ParamSpec& p, Range part,
               int64_t offset) {
  const Split& s = p.split;
  const int64_t inner =
      std::accumulate(p.shape.begin() + s.dim + 1, p.shape.end(), int64_t{1}, std::multiplies<>());
  const int64_t here = p.shape[size_t(s.dim)] * inner,
                there = std::accumulate(s.extents.begin(), s.extents.end(), int64_t{0}) * inner;
  for (int64_t outer = part.begin / here; outer * here < part.end; ++outer) {
    int64_t local = outer * here, whole = outer * there;
    for (const int64_t extent : s.extents) {
      const int64_t each = s.extents.size() == 1 ? p.shape[size_t(s.dim)] : div_exact(extent, s.ranks);
      const Range real = s.real(extent, each);
      const Range mine = intersect(Range{0, real.size() * inner}.shifted(local), part);
      if (!mine.empty())
        out.push_back(
            {index, mine.shifted(whole + real.begin * inner - local), offset + mine.begin - part.begin});
      local += each * inner, whole += extent * inner;
    }
  }
}

}  // namespace

std::vector<FlatLayout::Piece> FlatLayout::pieces(Range slice) const {
  std::vector<Piece> out;
  for (int i = 0; i < params(); ++i) {
    const Range part = intersect(range(i), slice);
    if (part.empty()) continue;
    const Range elements = part.shifted(-range(i).begin);
    if (param(i).split)
      add_split(out, i, param(i), elements, part.begin - slice.begin);
    else
      out.push_back({i, elements, part.begin - slice.begin});
  }
  return out;
}

}  // namespace cleave::zero
