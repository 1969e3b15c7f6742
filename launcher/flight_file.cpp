#include "launcher/flight_file.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "core/environment.h"
#include "launcher/flight_writer.h"
#include "launcher/thread_stacks.h"

namespace cleave::launcher {
namespace {

struct Caught {
  int signal;
  std::string_view name;
};
constexpr Caught kCrashes[] = {
    {SIGSEGV, "SIGSEGV"}, {SIGABRT, "SIGABRT"}, {SIGBUS, "SIGBUS"}, {SIGFPE, "SIGFPE"}, {SIGILL, "SIGILL"}};

// Fixed text that a signal handler can read.
struct Text {
  std::array<char, 1024> bytes{};
  void set(std::string_view text) {
    const size_t n = std::min(text.size(), bytes.size() - 1);
    std::copy_n(text.begin(), n, bytes.begin());
    bytes[n] = 0;
  }
  std::string_view view() const { return {bytes.data(), strnlen(bytes.data(), bytes.size())}; }
};

// State of the handlers; never destroyed, because a signal may come at any time.
struct State {
  const comm::FlightRing* ring = nullptr;
  pid_t owner = 0;
  int rank = 0, ranks = 1, attempt = 0;
  Text job, host, folder, loss;
  std::atomic<bool> enabled = false, writing = false, loss_pending = false, loss_written = false,
                    lost = false;
  int python = -1;                                 // memory file
  void (*quit)(int, siginfo_t*, void*) = nullptr;  // handler of SIGQUIT that writes the file
  struct sigaction before[std::size(kCrashes)] = {};
  alignas(16) char stack[128 << 10];  // of handlers, for a thread that has overflown its own
};
State& state = *new State;

// Path of the file, with `suffix`.
Text path_of(std::string_view suffix) {
  Text path;
  path.set(state.folder.view());
  size_t at = path.view().size();
  const auto add = [&](std::string_view s) {
    for (const char c : s)
      if (at + 1 < path.bytes.size()) path.bytes[at++] = c;
    path.bytes[at] = 0;
  };
  char digits[16];
  int n = 0, rank = state.rank;
  do digits[n++] = char('0' + rank % 10);
  while (rank /= 10);
  std::reverse(digits, digits + n);
  add("/rank-"), add({digits, size_t(n)}), add(".json"), add(suffix);
  return path;
}

void make_folder() {
  Text path = state.folder;
  for (char* at = path.bytes.data() + 1; *at; ++at)
    if (*at == '/') *at = 0, mkdir(path.bytes.data(), 0777), *at = '/';
  mkdir(path.bytes.data(), 0777);
}

void say(std::string_view path) {
  char line[1200];
  size_t n = 0;
  for (const std::string_view part : {kFlightLine, path, std::string_view("\n")})
    for (const char c : part)
      if (n < sizeof(line)) line[n++] = c;
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line, n);
}

// Async-signal-safe. `context` is that of the signal.
void write_file(std::string_view reason, std::string_view text, const void* context) {
  if (!state.enabled || state.writing.exchange(true)) return;
  make_folder();
  const Text part = path_of(".part"), path = path_of("");
  const int fd = open(part.bytes.data(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd >= 0) {
    write_flight_record(fd, {state.ring, state.rank, state.ranks, state.attempt, state.job.view(),
                             state.host.view(), reason, text, state.python, context});
    close(fd);
    if (rename(part.bytes.data(), path.bytes.data()) == 0) say(path.view());
  }
  state.writing = false;
}

auto handler_of_quit() {
  struct sigaction now {};
  sigaction(SIGQUIT, nullptr, &now);
  return now.sa_sigaction;
}

bool is_owner() { return state.ring && getpid() == state.owner; }

void on_quit(int, siginfo_t*, void* context) {
  const int error = errno;
  if (is_owner()) {
    if (state.loss_pending.exchange(false))
      write_file("lost", state.loss.view(), context), state.loss_written = true;
    else if (!state.loss_written)
      write_file("SIGQUIT", "", context);
  }
  errno = error;
}

void on_crash(int signal, siginfo_t* info, void* context) {
  const Caught* const crash = std::find_if(std::begin(kCrashes), std::end(kCrashes),
                                           [&](const Caught& c) { return c.signal == signal; });
  // A crash while the file is written, or of a forked child, goes to the earlier handler at once.
  sigaction(signal, &state.before[crash - kCrashes], nullptr);
  if (is_owner() && !state.loss_written) write_file(crash->name, "", context);
  // A fault happens again at the same instruction; a signal that was sent does not.
  if (info->si_code <= 0) raise(signal);
}

}  // namespace

std::unique_ptr<FlightFile> FlightFile::install(const comm::FlightRing& ring, const Rank& rank) {
  if (state.ring) return nullptr;
  std::unique_ptr<FlightFile> file(new FlightFile);
  state.rank = rank.rank, state.ranks = rank.ranks, state.attempt = rank.attempt;
  state.job.set(rank.job);
  char host[256] = {};
  gethostname(host, sizeof(host) - 1);
  state.host.set(host);
  state.loss_pending = state.loss_written = state.lost = false;
  state.owner = getpid();
  // Never closed: Python writes into it until the process ends.
  if (state.python < 0) state.python = memfd_create("python stacks", MFD_CLOEXEC);
  file->write_into("flight");
  state.ring = &ring;
  ThreadStacks::install();
  settle();
  struct sigaction action {};
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
  action.sa_sigaction = on_crash;
  for (size_t i = 0; i < std::size(kCrashes); ++i) sigaction(kCrashes[i].signal, &action, &state.before[i]);
  action.sa_sigaction = on_quit;
  struct sigaction before {};
  sigaction(SIGQUIT, nullptr, &before);
  const bool is_free =
      before.sa_handler == SIG_DFL || before.sa_handler == SIG_IGN || before.sa_sigaction == on_quit;
  state.quit = is_free ? on_quit : nullptr;
  if (is_free) sigaction(SIGQUIT, &action, nullptr);
  return file;
}

FlightFile::~FlightFile() {
  state.enabled = false;
  for (size_t i = 0; i < std::size(kCrashes); ++i) sigaction(kCrashes[i].signal, &state.before[i], nullptr);
  // The handler of SIGQUIT stays: a late one must not end a process that is about to leave.
  state.ring = nullptr;
}

void FlightFile::settle() {
  stack_t own{}, now{};
  own.ss_sp = state.stack, own.ss_size = sizeof(state.stack);
  sigaltstack(nullptr, &now);
  if ((now.ss_flags & SS_DISABLE) || now.ss_size < own.ss_size) sigaltstack(&own, nullptr);
  if (state.quit) state.quit = handler_of_quit();
}

void FlightFile::write_into(const std::string& folder) {
  const std::string chosen = environment_value("CLEAVE_FLIGHT");
  state.enabled = false;
  if (chosen == "off") return;
  state.folder.set(std::filesystem::absolute(chosen.empty() ? folder : chosen).lexically_normal().string());
  state.enabled = true;
}

// The signal runs the handlers on this thread; Python's handler writes its stacks first.
void FlightFile::lost(const std::string& reason) {
  state.lost = true;
  if (!is_owner() || !state.enabled || state.loss_written) return;
  state.loss.set(reason);
  // A later handler of the program is not for this.
  if (!state.quit || handler_of_quit() != state.quit) {
    write_file("lost", reason, nullptr), state.loss_written = true;
    return;
  }
  state.loss_pending = true;
  sigset_t quit, old;
  sigemptyset(&quit), sigaddset(&quit, SIGQUIT);
  pthread_sigmask(SIG_UNBLOCK, &quit, &old);
  syscall(SYS_tgkill, getpid(), syscall(SYS_gettid), SIGQUIT);
  pthread_sigmask(SIG_SETMASK, &old, nullptr);
  // The script has replaced the handler.
  if (state.loss_pending.exchange(false)) write_file("lost", reason, nullptr), state.loss_written = true;
}

bool FlightFile::takes_quit() const { return state.quit != nullptr; }
bool FlightFile::has_lost() const { return state.lost; }
int FlightFile::python_stacks() const { return state.python; }

}  // namespace cleave::launcher
