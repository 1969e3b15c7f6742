// A group whose calls are seen: each is an event of a trace, on the stream that it runs on.
#pragma once
#include <memory>

#include "comm/communicator.h"
#include "device/trace.h"

namespace cleave::comm {

// Both must outlive the group and its splits, whose calls are seen as well.
std::unique_ptr<Communicator> traced_communicator(Communicator& ranks, Trace& trace);

}  // namespace cleave::comm
