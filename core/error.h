// How the library fails: one exception type that carries what a user needs to read and the process exit code
// that scripts rely on. Messages say what was wanted, what was got, and what to do.
#pragma once
#include <fmt/core.h>

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace cleave {

// Process exit codes; the numbers are the command line's contract.
enum class Exit : int {
  ok = 0,
  internal = 1,    // a broken invariant: a defect of the program
  usage = 2,       // command line or configuration: nothing was started
  memory = 3,      // does not fit
  checkpoint = 4,  // missing, damaged or incompatible
  training = 5,    // cannot go on: loss scale at its minimum, non-finite loss
  rank_lost = 6,   // a rank did not arrive before the communication deadline
  data = 7,        // unreadable, too short, token out of range
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

// A user's mistake or the machine's refusal. The message is built only on failure.
template <class... Args>
void require(bool condition, Exit exit, fmt::format_string<Args...> format, Args&&... args) {
  if (!condition) [[unlikely]]
    fail(exit, format, std::forward<Args>(args)...);
}

// A source file's folder and name, without the path that it had where it was compiled.
constexpr std::string_view source_name(std::string_view path) {
  const size_t name = path.find_last_of('/');
  if (name == std::string_view::npos || name == 0) return path;
  return path.substr(path.find_last_of('/', name - 1) + 1);
}

}  // namespace cleave

// An invariant of the program, on in every build: CHECK(a == b, "gemm: {} rows into {}", a, b).
#define CHECK(condition, ...)                                                                              \
  do {                                                                                                     \
    if (!(condition)) [[unlikely]]                                                                         \
      throw ::cleave::Error(                                                                               \
          ::cleave::Exit::internal,                                                                        \
          fmt::format("{} [{}:{}]", fmt::format(__VA_ARGS__), ::cleave::source_name(__FILE__), __LINE__)); \
  } while (0)
