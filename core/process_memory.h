// Memory use of this process, as reported by the system.
#pragma once
#include <cstdint>

namespace cleave {

struct ProcessMemory {
  int64_t resident = 0, peak_resident = 0;  // bytes; 0 if unknown
};
ProcessMemory process_memory();

}  // namespace cleave
