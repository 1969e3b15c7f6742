// A rank's state as named records, which a checkpoint saves and any layout loads; and whole parameters.
#pragma once
#include "checkpoint/checkpoint.h"
#include "runtime/step/computation.h"
#include "runtime/step/rank_state.h"

namespace cleave::runtime {

// What this rank saves: each element of the job's state is in the records of one rank. Of units alone, and
// with what the computation keeps beside them.
std::vector<checkpoint::Record> records_to_save(RankState& rank, Stream& compute);
std::vector<checkpoint::Record> records_to_save(RankState& rank, Computation& computes, Stream& compute);
// What it loads of units: all that it holds.
std::vector<checkpoint::Record> records_to_load(RankState& rank, Stream& compute);

// Copies what this rank saves of one kind of a parameter's state (SavedState::kinds) to its elements of
// `whole`, in host memory.
void read_state(RankState& rank, const std::string& name, int kind, std::span<float> whole, Stream& compute);
// The same of a parameter's reduced gradient, as it is added up.
void read_gradient(RankState& rank, const std::string& name, std::span<float> whole, Stream& compute);
// Overwrites what this rank holds of that gradient by what a visit would have written of it.
void write_gradient(RankState& rank, const std::string& name, std::span<const float> whole, Memory& memory,
                    Stream& compute);
// Overwrites what this rank holds of a parameter's state. A master's value reaches working copies by
// publish_masters. Collective.
void write_state(RankState& rank, const std::string& name, int kind, std::span<float> whole, Stream& compute);
// Overwrites the masters of all that this rank holds; the values are of whole parameters. Collective.
void write_parameters(RankState& rank, const std::function<std::vector<float>(const ParamSpec&)>& values,
                      Stream& compute);

}  // namespace cleave::runtime
