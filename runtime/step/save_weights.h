// The weights of a training, whole, as files that transformers reads.
#pragma once
#include <filesystem>

#include "checkpoint/weight_writer.h"
#include "runtime/step/rank_state.h"

namespace cleave::runtime {

// The first rank of the world writes what write_weights() writes to the folder, replacing weights that
// were there; the others send what they have of a piece at a time. A piece is all that any rank holds of it.
// Throws what one rank threw on all of them, and what was in the folder is there still. Collective.
void save_weights(RankState& rank, comm::Communicator& world, Stream& compute, Stream& comm,
                  const std::filesystem::path& folder, const checkpoint::WeightNames& names,
                  const checkpoint::WeightFormat& format);

}  // namespace cleave::runtime
