#include "tests/comm/processes.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>
#include <utility>

#include "comm/rendezvous/socket.h"

namespace cleave::comm::test {

int free_port() { return comm::port_of(comm::listen_on(0)); }

Child::Child(const std::function<int()>& body) {
  int ends[2];
  CHECK(pipe2(ends, O_CLOEXEC) == 0, "pipe");
  pid_ = fork();
  CHECK(pid_ >= 0, "fork");
  if (pid_ > 0) {
    close(ends[1]);
    pipe_ = ends[0];
    return;
  }
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  int exit_code = 1;
  std::string message;
  try {
    exit_code = body();
  } catch (const Error& e) {
    exit_code = int(e.exit());
    message = e.what();
  } catch (const std::exception& e) {
    message = e.what();
  }
  if (!message.empty() && write(ends[1], message.data(), message.size()) < 0) exit_code = 99;
  _exit(exit_code);
}

Child::Child(Child&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)), pipe_(std::exchange(other.pipe_, -1)) {}

Child::~Child() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  if (pipe_ >= 0) close(pipe_);
}

void Child::signal(int number) const { kill(pid_, number); }

Ended Child::wait(std::chrono::seconds limit) {
  Ended ended;
  const auto deadline = comm::Clock::now() + limit;
  int status = 0;
  pid_t got = 0;
  while ((got = waitpid(pid_, &status, WNOHANG)) == 0 && comm::Clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  if (got == 0) {
    ended.message = "still runs after the limit";
    return ended;
  }
  pid_ = -1;
  ended.exit = WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
  char buffer[4096];
  const ssize_t n = read(pipe_, buffer, sizeof(buffer));
  if (n > 0) ended.message.assign(buffer, size_t(n));
  return ended;
}

comm::RankInfo rank_of(int rank, int world, int port) {
  comm::RankInfo info;
  info.rank = rank;
  info.world = world;
  info.master_port = port;
  info.job_id = "test";
  info.token = "secret";
  return info;
}

std::vector<Child> start_ranks(int size, const comm::ConnectOptions& options,
                               const std::function<void(comm::World&)>& body) {
  const int port = free_port();
  std::vector<Child> children;
  for (int r = 0; r < size; ++r)
    children.emplace_back([&, r] {
      const auto world = comm::connect(rank_of(r, size, port), options);
      body(*world);
      return 0;
    });
  return children;
}

std::vector<Ended> wait_all(std::vector<Child>& children) {
  std::vector<Ended> ends;
  for (Child& c : children) ends.push_back(c.wait());
  return ends;
}

}  // namespace cleave::comm::test
