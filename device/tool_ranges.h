// Names for what the host's thread does, which Nsight Systems and other tools show (NVTX): builds with the
// CUDA backend have them, on a CPU's ranks, too.
#pragma once
#include <string_view>

namespace cleave {

// Whether a tool has attached itself to this process. Asked before a name is made.
bool a_tool_listens();

// From here to end_tool_range() of the same thread, what it does is called "category: name". Ranges nest.
void begin_tool_range(std::string_view category, std::string_view name);
void end_tool_range();

}  // namespace cleave
