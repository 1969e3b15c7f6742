// Units of a model, and the ones that a rank holds: a value that every rank computes identically.
#pragma once
#include <algorithm>
#include <string>
#include <vector>

#include "core/param_spec.h"

namespace cleave::runtime {

struct RankUnits {
  std::string model;                      // name, for messages
  std::vector<UnitSpec> all;              // of the whole model, in order of first use
  std::vector<std::vector<int>> holders;  // by unit: ranks of the pipe, ascending
  std::vector<int> held;                  // by this rank: indices into `all`, in the order of its store
  int most_uses = 1;                      // maximum uses of a unit in a micro-batch, over the pipe

  // Returns true if a rank of the pipe counts a shared unit, in the norm and in checkpoints.
  bool speaks(int pipe_rank, int unit) const { return holders[size_t(unit)].front() == pipe_rank; }
};

// Returns units that every rank holds completely, for passes that run outside the engine. uses: maximum uses
// of one unit in a micro-batch.
inline RankUnits whole_units(std::string model, std::vector<UnitSpec> units, int uses) {
  RankUnits out{
      .model = std::move(model), .all = std::move(units), .holders = {}, .held = {}, .most_uses = uses};
  for (int u = 0; u < int(out.all.size()); ++u) out.holders.push_back({0}), out.held.push_back(u);
  return out;
}

}  // namespace cleave::runtime
