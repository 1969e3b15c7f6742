// Errors of CPU streams that nobody synchronizes: they go to the GPU's streams that wait for their work.
#pragma once
#include <exception>

#include "device/queue.h"

namespace cleave {

// What work of a CPU stream before this point, which was reached, failed with; null: nothing, or it is
// another kind of stream.
std::exception_ptr failure_before(const Event::State& point);

}  // namespace cleave
