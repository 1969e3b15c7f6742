#include "zero/flat_layout.h"

#include <algorithm>
#include <set>

namespace cleave::zero {

FlatLayout::FlatLayout(UnitSpec spec, int shards, const config::DecayRule& decays)
    : spec_(std::move(spec)), ranges_(spec_.params.size()) {
  CHECK(shards >= 1, "unit {}: {} shards", spec_.name, shards);
  CHECK(spec_.word == 0 || (spec_.frozen && kAligned % spec_.word == 0), "unit {}: words of {} elements",
        spec_.name, spec_.word);
  std::set<AxisSet> cuts = {AxisSet()};
  for (const ParamSpec& p : spec_.params) cuts.insert(p.cut_by());
  for (const AxisSet& axes : cuts) add_segment(true, axes);
  for (auto axes = cuts.rbegin(); axes != cuts.rend(); ++axes) add_segment(false, *axes);
  numel_ = shards * shard_numel(shards);
  for (const ParamSpec& p : spec_.params) decays_.push_back(decays.applies_to(p));
  find_decay_ranges();
}

void FlatLayout::add_segment(bool decay, AxisSet axes) {
  const int64_t begin = used_;
  for (size_t i = 0; i < ranges_.size(); ++i) {
    const ParamSpec& p = spec_.params[i];
    if (p.decay != decay || p.cut_by() != axes) continue;
    ranges_[i] = {used_, used_ + p.numel()};
    used_ = ranges_[i].end;
  }
  if (used_ > begin) segments_.push_back({axes, {begin, used_}});
}

// Padding is 0 and belongs to the last parameter.
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

AxisSet FlatLayout::cut_by() const {
  AxisSet axes;
  for (const Segment& s : segments_) axes.add(s.cut_by);
  return axes;
}

std::vector<Range> FlatLayout::cut_by(AxisSet axes) const {
  std::vector<Range> out;
  for (const Segment& s : segments_) {
    if (!s.cut_by.has_all(axes)) continue;
    if (out.empty() || out.back().end != s.range.begin) out.push_back(s.range);
    out.back().end = s.range.end;
  }
  return out;
}

std::vector<Range> FlatLayout::summed(Range slice, Axis axis, bool cut_rows) const {
  std::vector<Range> out;
  const auto add = [&](Range all) {
    if (const Range part = intersect(all, slice); !part.empty()) out.push_back(part.shifted(-slice.begin));
  };
  if (frozen()) return {};
  for (const Segment& s : segments_)
    if (cut_rows && !s.cut_by.has(axis)) add(s.range);
  for (int i = 0; i < params(); ++i)
    if (!cut_rows && param(i).used_in_part(axis)) add(range(i));
  return out;
}

namespace {

// Consecutive elements of a tensor, and their start in a slice.
struct Run {
  Range elements;
  int64_t offset;
};

// Maps a run of a rank's part, which has this shape, to runs of the unsplit tensor: each block at each outer
// index gives one consecutive run.
void add_split(std::vector<Run>& out, const Split& s, const std::vector<int64_t>& shape, const Run& part) {
  const auto dim = size_t(s.dim);
  const int64_t inner =
      std::accumulate(shape.begin() + s.dim + 1, shape.end(), int64_t{1}, std::multiplies<>());
  const int64_t here = shape[dim] * inner, there = s.extent() * inner;
  for (int64_t outer = part.elements.begin / here; outer * here < part.elements.end; ++outer) {
    int64_t local = outer * here, whole = outer * there;
    for (const int64_t extent : s.extents) {
      const int64_t each = s.extents.size() == 1 ? shape[dim] : div_exact(extent, s.ranks);
      const Range real = s.real(extent, each);
      const Range mine = intersect(Range{0, real.size() * inner}.shifted(local), part.elements);
      if (!mine.empty())
        out.push_back({mine.shifted(whole + real.begin * inner - local),
                       part.offset + mine.begin - part.elements.begin});
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
    std::vector<Run> runs = {{part.shifted(-range(i).begin), part.begin - slice.begin}};
    std::vector<int64_t> shape = param(i).shape;
    for (const Split& s : param(i).splits()) {
      std::vector<Run> before;
      for (const Run& run : runs) add_split(before, s, shape, run);
      runs = std::move(before), shape[size_t(s.dim)] = s.extent();
    }
    for (const Run& run : runs) out.push_back({i, run.elements, run.offset});
  }
  return out;
}

}  // namespace cleave::zero
