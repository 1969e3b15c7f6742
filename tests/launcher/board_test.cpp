// Shared memory of a launcher and its ranks, with ranks as other processes.
#include "launcher/board.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <thread>

#include "core/error.h"
#include "tests/scratch.h"

namespace cleave::launcher {
namespace {

// Runs the body in another process and returns its exit code.
int in_process(const std::function<int()>& body) {
  const pid_t child = fork();
  if (child == 0) _exit(body());
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(Board, HoldsTheMemoryOfARankAfterItsProcessEnds) {
  Board board(2, 5);
  EXPECT_EQ(board.first_attempt(), 5);
  int ready[2], taken[2];
  ASSERT_EQ(pipe(ready), 0);
  ASSERT_EQ(pipe(taken), 0);
  const pid_t child = fork();
  if (child == 0) {
    Board mine(board.place(), 1, 2);
    const comm::SharedMemory state = comm::SharedMemory::create(4096);
    std::memcpy(state.data(), "kept", 5);
    mine.offer(state);
    char c = 0;
    if (write(ready[1], "x", 1) != 1 || read(taken[0], &c, 1) != 1) _exit(1);
    _exit(0);
  }
  char c = 0;
  ASSERT_EQ(read(ready[0], &c, 1), 1);
  board.collect();
  EXPECT_FALSE(board.holds_all()) << "rank 0 has offered nothing";
  ASSERT_EQ(write(taken[1], "x", 1), 1);
  waitpid(child, nullptr, 0);
  EXPECT_EQ(
      in_process([&] {
        const Board next(board.place(), 1, 2), other(board.place(), 0, 2);
        const comm::SharedMemory state = next.held();
        if (other.held().data()) return 2;
        return state.data() && std::strcmp(reinterpret_cast<const char*>(state.data()), "kept") == 0 ? 0 : 1;
      }),
      0);
}

TEST(Board, ForgetsAnOfferOfAProcessThatEndedBeforeTheLauncherTookIt) {
  Board board(1, 0);
  in_process([&] {
    Board(board.place(), 0, 1).offer(comm::SharedMemory::create(4096));
    return 0;
  });
  board.collect();
  EXPECT_FALSE(board.holds_all());
  Board next(board.place(), 0, 1);
  const comm::SharedMemory state = comm::SharedMemory::create(4096);
  next.offer(state);
  board.collect();
  EXPECT_TRUE(board.holds_all());
}

TEST(Board, StartsAttemptsForTheRanksThatWait) {
  Board board(2, 0);
  Board rank(board.place(), 1, 2);
  int next = 0;
  std::thread waits([&] { next = rank.wait_after(0); });
  while (!board.waits(1)) std::this_thread::yield();
  EXPECT_FALSE(board.waits(0));
  board.begin_attempt({"rank 0 was lost", 10});
  waits.join();
  EXPECT_EQ(next, 1);
  EXPECT_FALSE(board.waits(1)) << "it has left for the attempt";
  board.begin_attempt({"rank 1 was lost", 20});
  const Loss both = rank.take_loss();
  EXPECT_EQ(both.cause, "rank 0 was lost, rank 1 was lost");
  EXPECT_EQ(both.when, 10) << "of the first";
  board.begin_attempt({std::string(5000, 'x'), 30});
  const Loss last = rank.take_loss();
  EXPECT_EQ(last.when, 30);
  EXPECT_EQ(last.cause.find_first_not_of('x'), std::string::npos);
  board.end();
  EXPECT_EQ(rank.wait_after(3), Board::kEnded);
}

TEST(Board, IsAnErrorIfItsPlaceIsNot) {
  for (const char* place : {"", "1", "x.3", "4711.y", "."})
    expect_error(Exit::usage, {"CLEAVE_BOARD", "PID.FD"}, [&] { Board(place, 0, 1); });
}

}  // namespace
}  // namespace cleave::launcher
