// Counts the program's calls of each function in the replaced libraries, and lets one call fail.
#pragma once

namespace interpreter {

// Counts a call of this function. If not 0, the caller must return this error and do nothing else
// (CUDA_INTERPRETER_FAIL). At the end, the counts are written to the file named by
// CUDA_INTERPRETER_CALLS.
int failure_of(const char* function);
int gpu_of_thread();  // current GPU of the calling thread

}  // namespace interpreter

// Goes at the beginning of a library function, with its name and result type.
#define CALL_OF_LIBRARY(Result)                                                      \
  if (const int failure = interpreter::failure_of(__func__)) return Result(failure); \
  static_assert(true)
