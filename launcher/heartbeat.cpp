#include "launcher/heartbeat.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/error.h"

namespace cleave::launcher {
namespace {

// Only async-signal-safe calls. Closes all other descriptors, so that their readers and writers see the end
// when the parent process ends.
[[noreturn]] void beat(const std::vector<int>& descriptors, int highest, pid_t parent) {
  setpgid(0, 0);  // protects it from Ctrl-Z and Ctrl-C of a terminal
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(0);  // the parent died before prctl()
  for (int fd = 0; fd <= highest; ++fd) {
    bool kept = false;
    for (const int d : descriptors) kept = kept || d == fd;
    if (!kept) close(fd);
  }
  close_range(unsigned(highest) + 1, ~0U, 0);
  for (;; sleep(1))
    for (const int d : descriptors) {
      // A full descriptor has enough unread lines, and a missing reader is detected elsewhere.
      [[maybe_unused]] const ssize_t written = write(d, "\n", 1);
    }
}

}  // namespace

Heartbeat::Heartbeat(const std::vector<int>& descriptors) {
  const int highest = *std::max_element(descriptors.begin(), descriptors.end());
  const pid_t parent = getpid();
  pid_ = fork();
  require(pid_ >= 0, Exit::memory, "cannot start the process that watches the other hosts: fork: {}",
          std::strerror(errno));
  if (pid_ == 0) beat(descriptors, highest, parent);
}

Heartbeat::~Heartbeat() {
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

}  // namespace cleave::launcher
