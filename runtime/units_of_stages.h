// What the stages of a pipeline hold, put together where each rank declares the units of its own alone.
#pragma once
#include "runtime/step/ranks.h"

namespace cleave::runtime {

// mine: what this rank declares, in the order in which it goes into its store; the model's are those of the
// stages in turn. A unit that several stages declare is theirs together. uses: of one unit in a micro-batch.
// Error(usage) on every rank where ranks of one stage declare other units, stages one in two ways, or
// somebody two of one name. Collective. planned: what each stage declares, where no rank can be asked.
RankUnits units_of_stages(Ranks& ranks, std::string model, const std::vector<UnitSpec>& mine,
                          const std::vector<std::vector<UnitSpec>>& planned, int uses);

}  // namespace cleave::runtime
