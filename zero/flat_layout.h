// Layout of the parameters of one unit in its flat buffer. Pure arithmetic, independent of memory, ranks and
// stage.
#pragma once
#include <algorithm>
#include <vector>

#include "config_schema/decay_rule.h"
#include "core/param_spec.h"
#include "core/range.h"

namespace cleave::zero {

class FlatLayout {
 public:
  // Sorts parameters with weight decay first, so that decay covers one range of any slice. Parameters cut by
  // the same axes are adjacent: uncut ones come first in the decayed part and last in the other, so the
  // elements cut by one axis also form one range. Otherwise keeps the layer's order, without gaps. Pads the
  // tail so that `shards` equal shards cover the unit.
  FlatLayout(UnitSpec spec, int shards, const config::DecayRule& decays = {});
  // Returns the elements per shard of a unit, a multiple of its words. Shards of at least kAlignedFrom
  // elements are rounded up to a multiple of kAligned (at most 1/64 more), so every shard of every type
  // starts at a vector boundary.
  static constexpr int64_t kAligned = 64, kAlignedFrom = 64 * kAligned;
  int64_t shard_numel(int shards) const {
    const int64_t each = ceil_div(used_, shards);
    return round_up(each, each < kAlignedFrom ? std::max(1, word()) : kAligned);
  }

  const std::string& name() const { return spec_.name; }
  bool frozen() const { return spec_.frozen; }
  int word() const { return spec_.word; }  // UnitSpec::word
  int group() const { return spec_.group; }
  int64_t numel() const { return numel_; }      // with padding
  int64_t used_numel() const { return used_; }  // without padding
  int params() const { return int(spec_.params.size()); }
  const ParamSpec& param(int i) const {
    return spec_.params[size_t(i)];
  }  // in the order the layer declared them
  Range range(int i) const { return ranges_[size_t(i)]; }

  // Splits `slice` into maximal ranges with and without weight decay, relative to its begin.
  struct DecayRange {
    Range range;
    bool decay;
  };
  std::vector<DecayRange> decay_ranges(Range slice) const;
  bool decays(int i) const { return decays_[size_t(i)]; }  // for one parameter

  AxisSet cut_by() const;  // axes that cut at least one parameter
  // Returns the maximal ranges that every one of these axes cuts.
  std::vector<Range> cut_by(AxisSet axes) const;
  // Returns the parts of `slice` with a gradient that must be summed over the axis, although all its ranks
  // hold the same parameter; relative to the slice's begin. If the ranks of the axis cut rows, these are all
  // parts that the axis does not cut; otherwise the parameters that are marked so. Empty for a frozen unit.
  std::vector<Range> summed(Range slice, Axis axis, bool cut_rows) const;

  // Splits `slice` into parameters: the parameter index, the elements of the whole tensor, and the start
  // offset in the slice.
  struct Piece {
    int param;
    Range elements;
    int64_t offset;
    bool operator==(const Piece&) const = default;
  };
  std::vector<Piece> pieces(Range slice) const;

 private:
  void add_segment(bool decay, AxisSet axes);
  void find_decay_ranges();

  UnitSpec spec_;
  std::vector<Range> ranges_;
  struct Segment {
    AxisSet cut_by;
    Range range;
  };
  std::vector<Segment> segments_;         // parameters with equal decay and the same cutting axes
  std::vector<bool> decays_;              // by parameter
  std::vector<DecayRange> decay_ranges_;  // together they cover the unit
  int64_t used_ = 0, numel_ = 0;
};

}  // namespace cleave::zero
