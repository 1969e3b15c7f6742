// Wraps a communicator to record each call as a trace event on its stream.
#pragma once
#include <memory>

#include "comm/communicator.h"
#include "device/trace.h"

namespace cleave::comm {

// `ranks` and `trace` must outlive the result and its splits, which are also traced.
std::unique_ptr<Communicator> traced_communicator(Communicator& ranks, Trace& trace);

}  // namespace cleave::comm
