// The page that shows a live run, and finished runs beside each other.
#pragma once
#include <span>
#include <string>

namespace cleave::monitor {

// Returns an HTML page without references to other files. `runs` are objects of RunState::as_json; without
// any, the page asks its server for "status" each second.
std::string page_of(std::span<const std::string> runs = {});

}  // namespace cleave::monitor
