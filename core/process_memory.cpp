#include "core/process_memory.h"

#include <fstream>
#include <sstream>
#include <string>

namespace cleave {

ProcessMemory process_memory() {
  ProcessMemory memory;
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    std::istringstream in(line);
    std::string name;
    int64_t kib = 0;
    if (!(in >> name >> kib)) continue;
    if (name == "VmRSS:") memory.resident = kib * 1024;
    if (name == "VmHWM:") memory.peak_resident = kib * 1024;
  }
  return memory;
}

}  // namespace cleave
