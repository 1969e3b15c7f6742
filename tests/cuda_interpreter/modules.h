// The kernels of a program, as its object files bring them along.
#pragma once
#include <mutex>
#include <string>

#include "tests/cuda_interpreter/kernel.h"

namespace interpreter {

// What __cudaRegisterFatBinary was given: a container in which the text of a module lies.
void** register_module(const void* fat_binary);
void register_kernel(void** module, const void* host_function, const char* name);

struct Function {
  const Kernel* kernel = nullptr;
  int dynamic_shared = 0;  // that it may have, beyond 48 KiB in all
};
// Of a kernel's host function; null where it is not known. Decodes it at the first time; throws Defect.
Function* find_function(const void* host_function);

}  // namespace interpreter
