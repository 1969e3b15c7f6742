// The shared vocabulary of model, zero and checkpoint: what a parameter is, before anyone decides where it
// lives.
#pragma once
#include <cstdint>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "core/axis.h"
#include "core/range.h"

namespace cleave {

// Initial value as a function of the element's index in the whole tensor, so that any shard can be filled
// alone.
struct Init {
  enum class Kind { zeros, ones, normal, uniform } kind = Kind::zeros;
  float scale = 0;  // standard deviation, or half width of the interval around 0
};

// Which part of a tensor a rank of an axis holds. One dim is cut: it is blocks of these extents one after
// another (fused queries, keys and values), and of each the rank has the rank-th of `ranks` equal parts.
// Parts of a single block may be longer than they must be: what of them is behind the block's end is padding,
// also where one rank holds all of it.
struct Split {
  int dim = 0;
  std::vector<int64_t> extents = {};  // in the tensor that is cut; none: every rank has all of it
  int rank = 0, ranks = 1;

  explicit operator bool() const { return !extents.empty(); }
  int64_t extent() const { return std::accumulate(extents.begin(), extents.end(), int64_t{0}); }
  // The elements that are not padding, of a block of this extent that the rank's part has `each` of.
  Range real(int64_t extent, int64_t each) const {
    return intersect({0, extent}, Range{0, each}.shifted(std::min(extent, rank * each)));
  }
};

// What the ranks of an axis have of a parameter: parts, or, without a split, all of it, of which each uses
// some. Then the gradients that they compute are parts of a sum.
struct Cut {
  Axis axis = Axis::tensor;
  Split split = {};
};

struct ParamSpec {
  std::string name;            // global: "h.3.attn.qkv.weight"
  std::vector<int64_t> shape;  // of what this rank holds
  Init init;
  bool decay = false;  // weight decay applies by default (config_schema/decay_rule.h)
  // Cuts of different axes; each cuts what the ones before it left. Along every other axis all ranks have the
  // same.
  std::vector<Cut> cuts = {};

  AxisSet cut_by() const {  // axes whose ranks have different parts
    AxisSet axes;
    for (const Cut& c : cuts)
      if (c.split) axes.add(c.axis);
    return axes;
  }
  bool used_in_part(Axis axis) const {
    return std::any_of(cuts.begin(), cuts.end(), [&](const Cut& c) { return c.axis == axis && !c.split; });
  }
  // The way from the rank's part to the whole: the last cut first.
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

// The parameters that are gathered, reduced, moved and saved together: those of one layer. Layers that name
// the same unit share it (a tied embedding).
struct UnitSpec {
  std::string name;
  std::vector<ParamSpec> params;
  // Training leaves the values as they are: there are no gradients, no masters and no optimizer state of
  // them. They are sharded, gathered, moved and saved as others. A layer that trains some of its parameters
  // only has the others in a unit of their own.
  bool frozen = false;
  int group = 0;  // whose rates its updates take, where a step brings several (optim::StepArgs)
};

}  // namespace cleave
