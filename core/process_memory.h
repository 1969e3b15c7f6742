// What the system says of this process' memory.
#pragma once
#include <cstdint>

namespace cleave {

struct ProcessMemory {
  int64_t resident = 0, peak_resident = 0;  // bytes; 0 where the system does not tell
};
ProcessMemory process_memory();

}  // namespace cleave
