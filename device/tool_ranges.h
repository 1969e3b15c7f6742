// Named ranges of host work for Nsight Systems and other tools (NVTX). Builds with the CUDA backend have
// them, also on CPU ranks.
#pragma once
#include <string_view>

namespace cleave {

// Returns true if a tool is attached to this process; check it before formatting a name.
bool a_tool_listens();

// Names this thread's work until end_tool_range() "category: name". Ranges nest.
void begin_tool_range(std::string_view category, std::string_view name);
void end_tool_range();

}  // namespace cleave
