// A process that becomes a rank, its child process, and the end of both.
#include "launcher/last_of_rank.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace cleave::launcher {
namespace {

// True if the last writer of a pipe ends within ten seconds.
bool ends(int read_end) {
  pollfd end = {read_end, POLLIN, 0};
  char byte;
  return poll(&end, 1, 10'000) == 1 && read(read_end, &byte, 1) == 0;
}

struct Rank {
  // The rank and its child hold the write end of the pipe.
  Rank() {
    EXPECT_EQ(pipe(held), 0);
    EXPECT_EQ(pipe(ready), 0);
    launcher = fork();
    if (launcher == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (fork() == 0) become_rank();
      close(held[1]);
      for (;;) pause();
    }
    close(held[1]);
    EXPECT_EQ(read(ready[0], &pid, sizeof(pid)), ssize_t(sizeof(pid)));
  }
  ~Rank() {
    kill(launcher, SIGKILL);
    kill(-pid, SIGKILL);
    waitpid(launcher, nullptr, 0);
    for (const int fd : {held[0], ready[0], ready[1]}) close(fd);
  }
  [[noreturn]] void become_rank() {
    end_with_all_children();
    if (fork() == 0)
      for (;;) pause();
    const pid_t self = getpid();
    if (write(ready[1], &self, sizeof(self)) < 0) _exit(1);
    for (;;) pause();
  }
  int held[2], ready[2];
  pid_t launcher = -1, pid = -1;
};

TEST(LastOfRank, EndsItsChildrenWhenItIsKilled) {
  Rank rank;
  kill(rank.pid, SIGKILL);
  EXPECT_TRUE(ends(rank.held[0]));
}

TEST(LastOfRank, EndsWithItsLauncher) {
  Rank rank;
  kill(rank.launcher, SIGKILL);
  EXPECT_TRUE(ends(rank.held[0]));
}

}  // namespace
}  // namespace cleave::launcher
