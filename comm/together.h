// Work that one rank may fail at, such as reading a file, and that all ranks must then leave alike.
#pragma once
#include <functional>

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

}  // namespace cleave::comm
