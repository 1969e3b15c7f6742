// Saves the whole weights of a training as files that transformers reads.
#pragma once
#include <filesystem>

#include "checkpoint/weight_writer.h"
#include "runtime/step/rank_state.h"

namespace cleave::runtime {

// The first rank of the world writes the files of write_weights() to the folder and replaces existing
// weights; the other ranks send their parts of one piece at a time. Memory per rank is one piece. If one rank
// throws, all ranks throw the same error and the folder keeps its content. Collective.
void save_weights(RankState& rank, comm::Communicator& world, Stream& compute, Stream& comm,
                  const std::filesystem::path& folder, const checkpoint::WeightNames& names,
                  const checkpoint::WeightFormat& format);

}  // namespace cleave::runtime
