// The shared vocabulary of model, zero and checkpoint: what a parameter is, before anyone decides where it
// lives.
#pragma once
#include <cstdint>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

namespace cleave {

// Initial value as a function of the element's index in the whole tensor, so that any shard can be filled
// alone.
struct Init {
  enum class Kind { zeros, ones, normal, uniform } kind = Kind::zeros;
  float scale = 0;  // standard deviation, or half width of the interval around 0
};

// Which part of a whole tensor a rank of the tensor axis holds. One dim is cut: it is `blocks` equal blocks
// one after another (fused queries, keys and values), and the rank has the same consecutive indices of each.
struct Split {
  int dim = 0;
  int64_t blocks = 1;
  int64_t extent = 0;  // of a block in the whole tensor; 0: not split, every rank has all of it
  int64_t begin = 0;   // this rank's first index of every block; indices past the extent are padding

  explicit operator bool() const { return extent > 0; }
};

struct ParamSpec {
  std::string name;            // global: "h.3.attn.qkv.weight"
  std::vector<int64_t> shape;  // of what this rank holds
  Init init;
  bool decay = false;  // weight decay applies
  Split split = {};
  // Not split, but each rank of the tensor axis uses some of it: gradients are parts of a sum on every rank.
  bool partial = false;

  int64_t numel() const {
    return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
  }
  std::vector<int64_t> whole_shape() const {
    std::vector<int64_t> whole = shape;
    if (split) whole[size_t(split.dim)] = split.blocks * split.extent;
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
};

}  // namespace cleave
