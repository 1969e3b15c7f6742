// Errors of the library: one exception type with a message for the user and the process exit code that
// scripts rely on. A message states the expected value, the actual value and the action.
#pragma once
#include <fmt/core.h>

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace cleave {

// Process exit codes; the numbers are part of the command-line contract.
enum class Exit : int {
  ok = 0,
  internal = 1,    // a broken invariant: a bug in the program
  usage = 2,       // command line or configuration: nothing was started
  memory = 3,      // does not fit
  checkpoint = 4,  // missing, damaged or incompatible
  training = 5,    // cannot continue: loss scale at its minimum, non-finite loss
  rank_lost = 6,   // a rank missed the communication deadline
  data = 7,        // unreadable, too short, token out of range
  different = 8,   // a comparison found a difference
  stopped = 75,    // stopped on request after saving
};

class Error : public std::runtime_error {
 public:
  Error(Exit exit, const std::string& message) : std::runtime_error(message), exit_(exit) {}
  Exit exit() const { return exit_; }

 private:
  Exit exit_;
};

template <class... Args>
[[noreturn]] void fail(Exit exit, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(exit, fmt::format(format, std::forward<Args>(args)...));
}

// Fails if the condition is false, for errors of the user or the machine. Formats the message only on
// failure.
template <class... Args>
void require(bool condition, Exit exit, fmt::format_string<Args...> format, Args&&... args) {
  if (!condition) [[unlikely]]
    fail(exit, format, std::forward<Args>(args)...);
}

// Folder and name of a source file, without its build path.
constexpr std::string_view source_name(std::string_view path) {
  const size_t name = path.find_last_of('/');
  if (name == std::string_view::npos || name == 0) return path;
  return path.substr(path.find_last_of('/', name - 1) + 1);
}

}  // namespace cleave

// Checks an invariant of the program in every build: CHECK(a == b, "gemm: {} rows into {}", a, b).
#define CHECK(condition, ...)                                                                              \
  do {                                                                                                     \
    if (!(condition)) [[unlikely]]                                                                         \
      throw ::cleave::Error(                                                                               \
          ::cleave::Exit::internal,                                                                        \
          fmt::format("{} [{}:{}]", fmt::format(__VA_ARGS__), ::cleave::source_name(__FILE__), __LINE__)); \
  } while (0)
