// Merges the units of all pipeline stages when each rank declares only its own.
#pragma once
#include "runtime/step/ranks.h"

namespace cleave::runtime {

// mine: units of this rank, in the order of its store. The model's units are those of the stages in turn; a
// unit declared by several stages is shared. uses: maximum uses of one unit in a micro-batch. planned: units
// of each stage, for planned ranks. Throws Error(usage) on every rank if ranks of one stage declare different
// units, stages declare a unit differently, or a rank declares a duplicate name. Collective.
RankUnits units_of_stages(Ranks& ranks, std::string model, const std::vector<UnitSpec>& mine,
                          const std::vector<std::vector<UnitSpec>>& planned, int uses);

}  // namespace cleave::runtime
