// Kernels of a program, from its object files.
#pragma once
#include <mutex>
#include <string>

#include "tests/cuda_interpreter/kernel.h"

namespace interpreter {

// Registers the argument of __cudaRegisterFatBinary: a container with the text of a module.
void** register_module(const void* fat_binary);
void register_kernel(void** module, const void* host_function, const char* name);

struct Function {
  const Kernel* kernel = nullptr;
  int dynamic_shared = 0;  // its limit, beyond 48 KiB in total
};
// Returns the kernel of a host function, or null if it is unknown. Decodes it at the first call;
// throws Defect.
Function* find_function(const void* host_function);

}  // namespace interpreter
