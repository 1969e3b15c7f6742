#include "tests/cuda_interpreter/calls.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>

namespace interpreter {
namespace {

struct Calls {
  std::mutex mutex;
  std::map<std::string, long> of;
  // The call to fail: function, call number and error, in every process or in one rank only.
  std::string failing;
  long number = 0;
  int error = 0;

  Calls();
};

Calls& calls() {
  static Calls* all = new Calls;  // threads call until the process ends
  return *all;
}

// Several processes write to one file, with whole lines.
void list_calls() {
  std::string text;
  {
    std::lock_guard lock(calls().mutex);
    for (const auto& [name, count] : calls().of)
      text += std::to_string(getpid()) + " " + name + " " + std::to_string(count) + "\n";
  }
  const int file =
      open(std::getenv("CUDA_INTERPRETER_CALLS"), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (file < 0 || write(file, text.data(), text.size()) < 0) std::perror("CUDA_INTERPRETER_CALLS");
  close(file);
}

// function:number:error[:rank]
Calls::Calls() {
  if (std::getenv("CUDA_INTERPRETER_CALLS")) std::atexit(list_calls);
  const char* text = std::getenv("CUDA_INTERPRETER_FAIL");
  if (!text || !*text) return;
  char name[80] = {};
  int rank = -1;
  if (std::sscanf(text, "%79[^:]:%ld:%d:%d", name, &number, &error, &rank) < 3) {
    std::fprintf(stderr, "CUDA_INTERPRETER_FAIL=%s: expected function:number:error, and optionally :rank\n",
                 text);
    std::exit(2);
  }
  const char* own = std::getenv("RANK");
  if (rank < 0 || (own && std::atoi(own) == rank)) failing = name;
}

}  // namespace

int failure_of(const char* function) {
  Calls& all = calls();
  std::lock_guard lock(all.mutex);
  const long number = ++all.of[function];
  if (number != all.number || all.failing != function) return 0;
  std::fprintf(stderr, "cuda interpreter: call %ld of %s fails with %d, as it was told\n", number, function,
               all.error);
  return all.error;
}

}  // namespace interpreter
