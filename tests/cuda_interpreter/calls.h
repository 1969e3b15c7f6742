// The program's calls to the libraries that are stood in for: how many there were of each function, and one
// that fails.
#pragma once

namespace interpreter {

// Counts a call of this function. Not 0: the error that it has to return and do nothing, because
// CUDA_INTERPRETER_FAIL says so. A file that CUDA_INTERPRETER_CALLS names is given the counts at the end.
int failure_of(const char* function);

}  // namespace interpreter

// At the beginning of a function of a library, whose name and type of results it has.
#define CALL_OF_LIBRARY(Result)                                                      \
  if (const int failure = interpreter::failure_of(__func__)) return Result(failure); \
  static_assert(true)
