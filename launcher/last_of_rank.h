// A rank that another launcher started, mpirun for one, ends as under ours: nothing of it is left.
#pragma once

namespace cleave::launcher {

// Makes this process the leader of a group, which is killed when it ends however it does, and which dies with
// the process that started it. It may execute another program afterwards. A kernel before 5.3 has no such
// group.
void end_with_all_children();

}  // namespace cleave::launcher
