// The units of a model, and which of them a rank holds: a value, computed alike on every rank.
#pragma once
#include <algorithm>
#include <string>
#include <vector>

#include "core/param_spec.h"

namespace cleave::runtime {

struct RankUnits {
  std::string model;                      // its name, for messages
  std::vector<UnitSpec> all;              // of the whole model, in the order of their first use
  std::vector<std::vector<int>> holders;  // of each: ranks of the pipe, ascending
  std::vector<int> held;  // by this rank: indices in `all`, in the order in which they go into its store
  int most_uses = 1;      // of one unit in a micro-batch, over all ranks of the pipe

  // Whether a rank of the pipe speaks for a unit that several hold: in the norm and in checkpoints.
  bool speaks(int pipe_rank, int unit) const { return holders[size_t(unit)].front() == pipe_rank; }
};

// Every rank holds all of them, as one whose passes run elsewhere does. uses: of one of them in a
// micro-batch.
inline RankUnits whole_units(std::string model, std::vector<UnitSpec> units, int uses) {
  RankUnits out{
      .model = std::move(model), .all = std::move(units), .holders = {}, .held = {}, .most_uses = uses};
  for (int u = 0; u < int(out.all.size()); ++u) out.holders.push_back({0}), out.held.push_back(u);
  return out;
}

}  // namespace cleave::runtime
