// Where each parameter of one unit sits in its flat buffer. Pure arithmetic: no memory, no ranks, no stage.
#pragma once
#include <vector>

#include "config_schema/decay_rule.h"
#include "core/param_spec.h"
#include "core/range.h"

namespace cleave::zero {

class FlatLayout {
 public:
  // Parameters that weight decay applies to by default come first, so that it then covers one range of any
  // slice. Those that the same axes cut stand together, the whole ones first among the decayed and last among
  // the others, so that what one axis cuts is one range as well. Otherwise the layer's order is kept, without
  // gaps. The tail is padded so that `shards` equal shards cover the unit.
  FlatLayout(UnitSpec spec, int shards, const config::DecayRule& decays = {});
  // The elements of each of so many shards of a unit. From kAlignedFrom on a multiple of kAligned, so that
  // every shard of every type begins where vectors do; that is at most a 64th more.
  static constexpr int64_t kAligned = 64, kAlignedFrom = 64 * kAligned;
  static int64_t shard_numel(int64_t used, int shards) {
    const int64_t each = ceil_div(used, shards);
    return each < kAlignedFrom ? each : round_up(each, kAligned);
  }

  const std::string& name() const { return spec_.name; }
  bool frozen() const { return spec_.frozen; }
  int group() const { return spec_.group; }
  int64_t numel() const { return numel_; }      // with padding
  int64_t used_numel() const { return used_; }  // without
  int params() const { return int(spec_.params.size()); }
  const ParamSpec& param(int i) const {
    return spec_.params[size_t(i)];
  }  // in the order the layer declared them
  Range range(int i) const { return ranges_[size_t(i)]; }

  // The parts of `slice` with and without weight decay, as long as can be, relative to its begin.
  struct DecayRange {
    Range range;
    bool decay;
  };
  std::vector<DecayRange> decay_ranges(Range slice) const;
  bool decays(int i) const { return decays_[size_t(i)]; }  // of a parameter

  AxisSet cut_by() const;  // axes that cut some parameter
  // What every one of these axes cuts, as long ranges as can be.
  std::vector<Range> cut_by(AxisSet axes) const;
  // The parts of `slice` that all ranks of an axis have and that are parts of a sum over them in gradients,
  // relative to its begin: all that the axis does not cut where its ranks cut rows, else the parameters that
  // say so. None of a frozen unit.
  std::vector<Range> summed(Range slice, Axis axis, bool cut_rows) const;

  // The parts of `slice` that are parameters: which one, which elements of the whole tensor, and where in the
  // slice they start.
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
  std::vector<Segment> segments_;         // parameters of equal decay that the same axes cut
  std::vector<bool> decays_;              // by parameter
  std::vector<DecayRange> decay_ranges_;  // that together are the whole unit
  int64_t used_ = 0, numel_ = 0;
};

}  // namespace cleave::zero
