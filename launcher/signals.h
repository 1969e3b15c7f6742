// Signals of a launcher as a descriptor, so that one poll() waits for them and everything else.
#pragma once
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <optional>

#include "comm/rendezvous/socket.h"

namespace cleave::launcher {

class Signals {
 public:
  Signals() {
    sigset_t set;
    sigemptyset(&set);
    for (int s : {SIGINT, SIGTERM, SIGUSR1, SIGQUIT, SIGCHLD}) sigaddset(&set, s);
    struct sigaction hangup {};
    sigaction(SIGHUP, nullptr, &hangup);
    if (hangup.sa_handler != SIG_IGN) sigaddset(&set, SIGHUP);  // respects nohup
    pthread_sigmask(SIG_BLOCK, &set, &before_);
    fd_ = comm::Socket(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  }
  ~Signals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  int fd() const { return fd_.fd(); }
  std::optional<int> next() {
    signalfd_siginfo info;
    if (read(fd_.fd(), &info, sizeof(info)) != ssize_t(sizeof(info))) return {};
    return int(info.ssi_signo);
  }

 private:
  sigset_t before_;
  comm::Socket fd_;
};

}  // namespace cleave::launcher
