#include "launcher/exit_code.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <new>
#include <system_error>

#include "comm/together.h"
#include "core/error.h"
#include "core/printable.h"

namespace cleave::launcher {
namespace {

// "rank 3: " if there are several ranks, so that interleaved messages stay readable; empty for a text that
// names a rank itself.
std::string rank_prefix(std::string_view text) {
  if (text.starts_with("rank ")) return "";
  const char* world = std::getenv("WORLD_SIZE");
  const char* rank = std::getenv("RANK");
  return world && rank && std::string_view(world) != "1" ? fmt::format("rank {}: ", rank) : "";
}

void say_error(std::string_view text) {
  if (text.empty()) return;  // another rank prints it
  std::fprintf(stderr, "error: %s%s\n", rank_prefix(text).c_str(), printable(text).c_str());
}

// Exit code of an unexpected error of a system call.
Exit exit_of(const std::error_code& code) {
  if (code == std::errc::not_enough_memory || code == std::errc::resource_unavailable_try_again)
    return Exit::memory;  // the latter: a thread cannot be started
  return Exit::usage;
}

const char* hint_of(const std::error_code& code) {
  if (code == std::errc::too_many_files_open) return "; allow more open files: ulimit -n";
  if (code == std::errc::resource_unavailable_try_again)
    return ": cannot start a thread; allow more processes and memory (ulimit -u, ulimit -v), or use fewer "
           "threads (OMP_NUM_THREADS)";
  if (code == std::errc::filename_too_long)
    return "; a name has at most 255 bytes and a path 4095: choose a shorter one";
  return "";
}

constexpr size_t kLongestPath = 80;  // bytes that a message shows

// Prints the current exception to stderr and returns its exit code.
Exit report_exception(std::string_view if_a_defect) {
  try {
    throw;
  } catch (const comm::RanksDiffer& e) {  // names its ranks
    std::fprintf(stderr, "error: %s\n", e.what());
    return e.exit();
  } catch (const Error& e) {
    if (e.exit() == Exit::internal)
      return say_error(fmt::format("{} ({})", e.what(), if_a_defect)), Exit::internal;
    return say_error(e.what()), e.exit();
  } catch (const std::bad_alloc&) {
    return say_error("out of host memory"), Exit::memory;
  } catch (const std::filesystem::filesystem_error& e) {
    const std::string path = e.path1().string();
    return say_error(fmt::format("{}{}{}{}",
                                 path.size() > kLongestPath ? path.substr(0, kLongestPath) + "..." : path,
                                 path.empty() ? "" : ": ", e.code().message(), hint_of(e.code()))),
           exit_of(e.code());
  } catch (const std::system_error& e) {
    return say_error(fmt::format("{}{}", e.what(), hint_of(e.code()))), exit_of(e.code());
  } catch (const std::exception& e) {
    return say_error(fmt::format("{} ({})", e.what(), if_a_defect)), Exit::internal;
  }
}

bool returned_by_itself = false;

// Handles an exception that leaves a destructor or a thread, such as the one that serves the rendezvous.
// Threads handle expected errors themselves. Memory can run out anywhere; formatting a message is then not
// possible.
[[noreturn]] void explain_exception_of_a_thread() {
  try {
    if (std::current_exception()) throw;
  } catch (const std::bad_alloc&) {
    constexpr std::string_view text = "error: out of host memory\n";
    [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, text.data(), text.size());
    _exit(int(Exit::memory));
  } catch (...) {
    std::fflush(nullptr);
    report_exception("in another thread: internal error of this program or of cleave");
  }
  std::abort();
}

// libgomp ends the process with code 1 if it cannot start its threads.
void explain_exit_of_a_library(int status, void*) {
  if (status != EXIT_FAILURE || returned_by_itself) return;
  say_error(
      "a library ended this program (see the line above); if it could not start threads, allow more memory "
      "and processes (ulimit -v, ulimit -u), or use fewer threads (OMP_NUM_THREADS)");
  std::fflush(nullptr);
  _exit(int(Exit::memory));
}

// Opens closed standard streams, so that no later file or socket takes their numbers.
void open_standard_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (fcntl(stream, F_GETFD) < 0) static_cast<void>(open("/dev/null", O_RDWR));  // lowest free number
}

}  // namespace

int exit_code_of(const std::function<int()>& body, std::string_view if_a_defect) {
  open_standard_streams();
  std::signal(SIGXFSZ, SIG_IGN);
  std::set_terminate(explain_exception_of_a_thread);
  on_exit(explain_exit_of_a_library, nullptr);
  int code = 0;
  try {
    code = body();
  } catch (...) {
    code = int(report_exception(if_a_defect));
  }
  returned_by_itself = true;
  return code;
}

}  // namespace cleave::launcher
