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

struct ParamSpec {
  std::string name;  // global: "h.3.attn.qkv.weight"
  std::vector<int64_t> shape;
  Init init;
  bool decay = false;  // weight decay applies

  int64_t numel() const {
    return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
  }
};

// The parameters that are gathered, reduced, moved and saved together: those of one layer. Layers that name
// the same unit share it (a tied embedding).
struct UnitSpec {
  std::string name;
  std::vector<ParamSpec> params;
};

}  // namespace cleave
