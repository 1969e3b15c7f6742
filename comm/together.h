// Work that one rank may fail at, such as reading a file, and that all ranks must then leave alike; and
// inputs that all ranks must have alike.
#pragma once
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "core/error.h"

namespace cleave::comm {

// What all ranks throw alike, so that one of them is enough to say it.
class AgreedError : public Error {
  using Error::Error;
};

// Runs the body on every rank, then tells all how it went. When any threw, every rank throws the
// error of the lowest that did as an AgreedError; on the others its text begins with "rank 3: ". What is no
// Error has the code `otherwise`, and a lack of memory Exit::memory. The body may not use the communicator.
// Collective.
void together(Communicator& world, Exit otherwise, const std::function<void()>& body);

// Inputs of a job by name, in one order on all ranks: {"--seed", "42"}.
using Facts = std::vector<std::pair<std::string, std::string>>;

// An error that all ranks throw in the same words, which name the ranks that it is about.
class RanksDiffer : public AgreedError {
  using AgreedError::AgreedError;
};

// Compares the facts of all ranks in one all-reduce of 32 bytes. If they differ, every rank throws
// RanksDiffer(usage), which names the first facts that differ, the ranks and their values. Collective.
void require_alike(Communicator& world, const Facts& mine);

}  // namespace cleave::comm
