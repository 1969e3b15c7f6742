// Names addresses of programs and libraries on this machine.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace cleave::launcher {

struct CodeAddress {
  std::string module;   // path of a file; empty: unknown
  int64_t offset = 0;   // from the first mapping of the file
  int64_t address = 0;  // in the process
};

// "run() at stage.cpp:120 (libx.so+0x1f30)" for each address, by addr2line; "libx.so+0x1f30" without that
// program, the file or its symbols.
std::vector<std::string> symbols_of(const std::vector<CodeAddress>& addresses);

}  // namespace cleave::launcher
