// Vocabulary of model, zero and checkpoint: describes a parameter independently of its placement.
#pragma once
#include <cstdint>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "core/axis.h"
#include "core/range.h"

namespace cleave {

// Initial value as a function of the element index in the whole tensor, so any shard can be filled alone.
struct Init {
  enum class Kind { zeros, ones, normal, uniform } kind = Kind::zeros;
  float scale = 0;  // standard deviation, or half width of the interval around 0
};

// The part of a tensor that a rank of an axis holds. One dim is split: it consists of consecutive blocks of
// these extents (fused queries, keys and values), and the rank holds part `rank` of `ranks` equal parts of
// each block. Parts of a single block may be longer than necessary; elements past the block's end are
// padding, also if one rank holds the whole block.
struct Split {
  int dim = 0;
  std::vector<int64_t> extents = {};  // of the whole tensor; empty: every rank holds all of it
  int rank = 0, ranks = 1;

  explicit operator bool() const { return !extents.empty(); }
  int64_t extent() const { return std::accumulate(extents.begin(), extents.end(), int64_t{0}); }
  // The range without padding, for a block of this extent and parts of `each` elements.
  Range real(int64_t extent, int64_t each) const {
    return intersect({0, extent}, Range{0, each}.shifted(std::min(extent, rank * each)));
  }
};

// Distribution of a parameter over the ranks of an axis. With a split, each rank holds a part. Without a
// split, all ranks hold the whole parameter and each uses some of it; their gradients are partial sums.
struct Cut {
  Axis axis = Axis::tensor;
  Split split = {};
};

struct ParamSpec {
  std::string name;            // global: "h.3.attn.qkv.weight"
  std::vector<int64_t> shape;  // of this rank's part
  Init init;
  bool decay = false;  // weight decay applies by default (config_schema/decay_rule.h)
  // Cuts of different axes; each cuts the result of the cuts before it. Along all other axes the ranks hold
  // equal parts.
  std::vector<Cut> cuts = {};

  AxisSet cut_by() const {  // axes along which ranks have different parts
    AxisSet axes;
    for (const Cut& c : cuts)
      if (c.split) axes.add(c.axis);
    return axes;
  }
  bool used_in_part(Axis axis) const {
    return std::any_of(cuts.begin(), cuts.end(), [&](const Cut& c) { return c.axis == axis && !c.split; });
  }
  // Splits that lead from the rank's part to the whole tensor: the last cut comes first.
  std::vector<Split> splits() const {
    std::vector<Split> all;
    for (auto cut = cuts.rbegin(); cut != cuts.rend(); ++cut)
      if (cut->split) all.push_back(cut->split);
    return all;
  }
  int64_t numel() const {
    return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
  }
  std::vector<int64_t> whole_shape() const {
    std::vector<int64_t> whole = shape;
    for (const Split& s : splits()) whole[size_t(s.dim)] = s.extent();
    return whole;
  }
  int64_t whole_numel() const {
    const std::vector<int64_t> whole = whole_shape();
    return std::accumulate(whole.begin(), whole.end(), int64_t{1}, std::multiplies<>());
  }
};

// Parameters of one layer, which are gathered, reduced, moved and saved together. Layers that name the same
// unit share it (a tied embedding).
struct UnitSpec {
  std::string name;
  std::vector<ParamSpec> params;
  // Training does not change the values: the unit has no gradients, masters or optimizer state. It is
  // sharded, gathered, moved and saved like other units. A partly trained layer declares its frozen
  // parameters as a separate unit.
  bool frozen = false;
  // Elements per 64-bit word of a frozen unit whose values have any type, such as packed integers: they are
  // moved and saved as bits, and no rank's part divides a word. 0: numbers of the engine's type.
  int word = 0;
  bool whole = false;  // parameters stay whole on the device of every rank, at every stage
  int group = 0;       // selects the rates of its updates if a step has several groups (optim::StepArgs)
};

}  // namespace cleave
