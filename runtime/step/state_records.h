// Rank state as named records that a checkpoint saves and any layout loads; access to whole parameters.
#pragma once
#include "checkpoint/checkpoint.h"
#include "runtime/step/computation.h"
#include "runtime/step/rank_state.h"

namespace cleave::runtime {

// Returns the records that this rank saves: each element of the job's state is in the records of one rank.
// For units only, and with the additional state of the computation.
std::vector<checkpoint::Record> records_to_save(RankState& rank, Stream& compute);
std::vector<checkpoint::Record> records_to_save(RankState& rank, Computation& computes, Stream& compute);
// Returns the records of all units that this rank holds, for loading.
std::vector<checkpoint::Record> records_to_load(RankState& rank, Stream& compute);

// Copies this rank's saved part of one kind of a parameter's state (SavedState::kinds) to its elements of
// `whole`, in host memory: fp32, or int64 for the words of a unit without numbers.
void read_state(RankState& rank, const std::string& name, int kind, Tensor whole, Stream& compute);
// Copies the elements of a parameter's master that this rank updates, in fp32 and host memory. Others of
// `whole` stay unchanged.
void read_own_master(RankState& rank, const std::string& name, std::span<float> whole, Stream& compute);
// Like read_state for the reduced gradient, as summed.
void read_gradient(RankState& rank, const std::string& name, std::span<float> whole, Stream& compute);
// Copies this rank's own gradient of the step so far, at stages 0 and 1: before its sum over the ranks of a
// step. Elements without one stay unchanged.
void read_own_gradient(RankState& rank, const std::string& name, std::span<float> whole, Stream& compute);
// Overwrites this rank's part of the gradient by values in the form that a visit writes.
void write_gradient(RankState& rank, const std::string& name, std::span<const float> whole, Memory& memory,
                    Stream& compute);
// Overwrites this rank's part of a parameter's state. publish_masters brings masters to working copies.
// Collective.
void write_state(RankState& rank, const std::string& name, int kind, Tensor whole, Stream& compute);
// Overwrites all masters on this rank; the values are whole parameters. Collective.
void write_parameters(RankState& rank, const std::function<std::vector<float>(const ParamSpec&)>& values,
                      Stream& compute);

}  // namespace cleave::runtime
