// SLURM's compressed lists.
#pragma once
#include <string>
#include <vector>

namespace cleave::launcher {

// "gnode[09-10,020],x": gnode09, gnode10, gnode020, x. Several brackets form a product; the last one varies
// fastest.
std::vector<std::string> expand_node_list(const std::string& list);

// "4,2(x2)": 4, 2, 2. Empty for an empty text. Throws Error(usage) for malformed lists.
std::vector<int> expand_tasks_per_node(const std::string& text);

}  // namespace cleave::launcher
