// Forwards errors of unsynchronized CPU streams to the GPU streams that wait for their work.
#pragma once
#include <exception>

#include "device/queue.h"

namespace cleave {

// Returns the error of a CPU stream's work before this reached point; null if there is none or the stream is
// not a CPU stream.
std::exception_ptr failure_before(const Event::State& point);

}  // namespace cleave
