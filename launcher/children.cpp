#include "launcher/children.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>

#include "core/error.h"
#include "launcher/memory_policy.h"
#include "launcher/passed_signals.h"

namespace cleave::launcher {
namespace {

const char* hint_of(int error) {
  return error == EMFILE || error == ENFILE ? "; allow more open files: ulimit -n" : "";
}

struct Pipe {
  Pipe() {
    int ends[2];
    const bool made = pipe2(ends, O_CLOEXEC) == 0;
    require(made, Exit::usage, "cannot create a pipe for a rank: {}{}", std::strerror(errno), hint_of(errno));
    read = comm::Socket(ends[0]);
    write = comm::Socket(ends[1]);
  }
  comm::Socket read, write;
};

std::vector<char*> pointers(const std::vector<std::string>& list) {
  std::vector<char*> result;
  for (const std::string& text : list) result.push_back(const_cast<char*>(text.c_str()));
  result.push_back(nullptr);
  return result;
}

// Code between fork and exec: only async-signal-safe calls. Reports errno through `failure` and exits.
struct Become {
  char* const* argv;
  char* const* environment;
  const char* folder;
  const cpu_set_t* cores;
  int memory_node;
  int in, out, err, inherits, failure, parent_death;
  pid_t parent;
  bool holds_stops;
};

[[noreturn]] void become(const Become& b) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, b.parent_death);
  const bool there = getppid() == b.parent;  // false: the parent died before prctl()
  if (there && (!b.folder || chdir(b.folder) == 0)) {
    if (b.cores) sched_setaffinity(0, sizeof(*b.cores), b.cores);
    prefer_memory_of(b.memory_node);
    dup2(b.in >= 0 ? b.in : open("/dev/null", O_RDONLY), STDIN_FILENO);
    if (b.out >= 0) dup2(b.out, STDOUT_FILENO);
    if (b.err >= 0) dup2(b.err, STDERR_FILENO);
    if (b.inherits >= 0) fcntl(b.inherits, F_SETFD, 0);
    sigset_t held;
    sigemptyset(&held);
    if (b.holds_stops)
      for (const int s : kStops) sigaddset(&held, s);
    sigprocmask(SIG_SETMASK, &held, nullptr);
    // A shell lets its background jobs ignore SIGINT and SIGQUIT, and a program would inherit that.
    for (const int s : {SIGPIPE, SIGXFSZ, SIGINT, SIGQUIT, SIGTERM}) signal(s, SIG_DFL);
    execvpe(b.argv[0], b.argv, b.environment);
  }
  const int error = errno;
  if (write(b.failure, &error, sizeof(error)) < 0) _exit(126);
  _exit(127);
}

}  // namespace

bool is_this_program(const std::vector<std::string>& command) {
  std::error_code none;
  return std::filesystem::equivalent(command.front(), "/proc/self/exe", none);
}

ChildProcess start_child(const ChildSpec& spec) {
  Pipe in, out, err, failure;
  const std::vector<char*> argv = pointers(spec.command), environment = pointers(spec.environment);
  cpu_set_t cores;
  CPU_ZERO(&cores);
  for (int core : spec.place.cores) CPU_SET(core, &cores);
  const pid_t parent = getpid();
  ChildProcess child;
  child.pid = fork();
  require(child.pid >= 0, Exit::memory, "cannot start a rank: fork: {}", std::strerror(errno));
  if (child.pid == 0)
    become({.argv = argv.data(),
            .environment = environment.data(),
            .folder = spec.folder.empty() ? nullptr : spec.folder.c_str(),
            .cores = spec.place.cores.empty() ? nullptr : &cores,
            .memory_node = spec.place.memory,
            .in = spec.pipe_input ? in.read.fd() : -1,
            .out = spec.inherit_output ? -1 : out.write.fd(),
            .err = spec.inherit_output ? -1 : err.write.fd(),
            .inherits = spec.inherits,
            .failure = failure.write.fd(),
            .parent_death = spec.parent_death,
            .parent = parent,
            .holds_stops = spec.holds_stops});
  setpgid(child.pid, child.pid);  // also here, in case the parent runs first
  failure.write.close();
  int error = 0;
  if (read(failure.read.fd(), &error, sizeof(error)) == ssize_t(sizeof(error))) {
    waitpid(child.pid, nullptr, 0);
    require(spec.folder.empty() || access(spec.folder.c_str(), X_OK) == 0, Exit::usage,
            "{}: cannot be started in {}: {}", spec.command[0], spec.folder, std::strerror(error));
    fail(Exit::usage, "{}: cannot be started: {}", spec.command[0], std::strerror(error));
  }
  if (spec.pipe_input) child.input = std::move(in.write);
  if (!spec.inherit_output) {
    child.output[0] = std::move(out.read);
    child.output[1] = std::move(err.read);
    for (comm::Socket& s : child.output) fcntl(s.fd(), F_SETFL, O_NONBLOCK);
  }
  return child;
}

void read_lines(ChildProcess& child, int which, const std::function<void(std::string_view line)>& take) {
  constexpr size_t kLongest = 64 << 10;
  comm::Socket& pipe = child.output[which];
  std::string& held = child.held[which];
  char buffer[16 << 10];
  const ssize_t n = read(pipe.fd(), buffer, sizeof(buffer));
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (n > 0) held.append(buffer, size_t(n));
  if (n <= 0) {
    pipe.close();
    if (!held.empty()) held += '\n';
  }
  if (held.size() > kLongest && held.find('\n') == std::string::npos) held += '\n';
  for (size_t end; (end = held.find('\n')) != std::string::npos; held.erase(0, end + 1))
    take(std::string_view(held).substr(0, end + 1));
}

bool is_stopped(int pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const size_t name_end = text.rfind(')');  // the state follows the name, which may contain blanks
  return name_end != text.npos && name_end + 2 < text.size() &&
         (text[name_end + 2] == 'T' || text[name_end + 2] == 't');
}

}  // namespace cleave::launcher
