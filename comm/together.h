// Agreement of all ranks: on errors of work that may fail on one rank, such as reading a file, and on inputs
// that must be equal.
#pragma once
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "core/error.h"

namespace cleave::comm {

// Error that all ranks throw; one rank is enough to print it.
class AgreedError : public Error {
  using Error::Error;
};

// Runs `body` on every rank and exchanges the results. If it throws on any rank, every rank throws the error
// of the lowest failing rank as an AgreedError; on other ranks its text starts with "rank 3: ". Exceptions
// other than Error get the exit code `otherwise`, or Exit::memory for a lack of memory. `body` must not use
// the communicator. Collective.
void together(Communicator& world, Exit otherwise, const std::function<void()>& body);

// Named inputs of a job, in the same order on all ranks: {"--seed", "42"}.
using Facts = std::vector<std::pair<std::string, std::string>>;

// Error with the same text on all ranks, which names the affected ranks.
class RanksDiffer : public AgreedError {
  using AgreedError::AgreedError;
};

// Compares the facts of all ranks in one all-reduce of 32 bytes. Returns the same text on every rank: empty,
// or the first differing facts with the ranks and their values, each followed by "; ". Collective.
std::string differences_of_ranks(Communicator& world, const Facts& mine);

// Compares the facts of all ranks in one all-reduce of 32 bytes. If they differ, every rank throws
// RanksDiffer(usage) with the first differing facts, the ranks and their values. Collective.
void require_alike(Communicator& world, const Facts& mine);

}  // namespace cleave::comm
