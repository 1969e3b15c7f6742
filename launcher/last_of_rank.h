// Makes sure that no process of a rank remains, also for ranks that another launcher started, such as mpirun.
#pragma once

namespace cleave::launcher {

// Makes this process the leader of a process group. The group is killed when the leader ends in any way, and
// the leader dies with its parent. The process may execute another program afterwards. Kernels before 5.3 do
// not support this.
void end_with_all_children();

}  // namespace cleave::launcher
