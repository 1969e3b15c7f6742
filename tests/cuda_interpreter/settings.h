// Numbers in the environment variables CUDA_INTERPRETER_<NAME>.
#pragma once
#include <cstdio>
#include <cstdlib>
#include <string>

namespace interpreter {

inline long long setting(const char* name, long long otherwise) {
  const char* text = std::getenv((std::string("CUDA_INTERPRETER_") + name).c_str());
  if (!text || !*text) return otherwise;
  char* end = nullptr;
  const long long value = std::strtoll(text, &end, 10);
  if (*end == 0) return value;
  std::fprintf(stderr, "CUDA_INTERPRETER_%s=%s: wanted a number\n", name, text);
  std::exit(2);
}

}  // namespace interpreter
