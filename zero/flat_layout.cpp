#include "zero/flat_layout.h"

namespace cleave {

FlatLayout::FlatLayout(UnitSpec spec, int shards) : spec_(std::move(spec)), ranges_(spec_.params.size()) {
  CHECK(shards >= 1, "unit {}: {} shards", spec_.name, shards);
  for (const bool decay : {true, false}) {
    for (size_t i = 0; i < ranges_.size(); ++i) {
      if (spec_.params[i].decay != decay) continue;
      ranges_[i] = {used_, used_ + spec_.params[i].numel()};
      used_ = ranges_[i].end;
    }
    if (decay) decayed_ = used_;
  }
  numel_ = round_up(used_, shards);
}

std::vector<FlatLayout::Group> FlatLayout::groups(Range slice) const {
  std::vector<Group> out;
  for (const Group& g : {Group{{0, decayed_}, true}, Group{{decayed_, numel_}, false}}) {
    const Range part = intersect(g.range, slice);
    if (!part.empty()) out.push_back({part.shifted(-slice.begin), g.decay});
  }
  return out;
}

std::vector<FlatLayout::Piece> FlatLayout::pieces(Range slice) const {
  std::vector<Piece> out;
  for (int i = 0; i < params(); ++i) {
    const Range part = intersect(range(i), slice);
    if (!part.empty()) out.push_back({i, part.shifted(-range(i).begin), part.begin - slice.begin});
  }
  return out;
}

}  // namespace cleave
