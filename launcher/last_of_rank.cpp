#include "launcher/last_of_rank.h"

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

namespace cleave::launcher {
namespace {

// Only async-signal-safe calls. Keeps only the leader's descriptor open, so that readers of the rank's output
// see its end.
[[noreturn]] void wait_and_kill(int leader, pid_t group) {
  setsid();
  dup2(leader, 0);
  close_range(1, ~0U, 0);
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, nullptr);
  pollfd ended = {0, POLLIN, 0};
  while (poll(&ended, 1, -1) != 1) {
  }
  kill(-group, SIGKILL);
  _exit(0);
}

}  // namespace

void end_with_all_children() {
  if (getpgrp() != getpid() && setpgid(0, 0) != 0) return;  // a session leader leads its group
  const pid_t group = getpid();
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const int leader = int(syscall(SYS_pidfd_open, group, 0));
  if (leader < 0) return;
  const pid_t child = fork();
  if (child == 0) {  // orphans the grandchild, so that the rank need not wait for it
    if (fork() == 0) wait_and_kill(leader, group);
    _exit(0);
  }
  if (child > 0) waitpid(child, nullptr, 0);
  close(leader);
}

}  // namespace cleave::launcher
