#include "device/team.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

namespace cleave {
namespace {

template <class Body>
void shares(int64_t count, const Body& body) {
  run_shares(
      count,
      [](const void* c, int thread, int64_t begin, int64_t end) {
        (*static_cast<const Body*>(c))(thread, begin, end);
      },
      &body);
}
template <class Body>
void in_turn(int64_t count, int64_t grain, const Body& body) {
  run_in_turn(
      count, grain,
      [](const void* c, int thread, int64_t begin, int64_t end) {
        (*static_cast<const Body*>(c))(thread, begin, end);
      },
      &body);
}

class Threads {
 public:
  explicit Threads(int threads) { set_team_threads(threads); }
  ~Threads() { set_team_threads(before_); }

 private:
  int before_ = team_threads();
};

double cpu_seconds() {
  rusage u;
  getrusage(RUSAGE_SELF, &u);
  return double(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
         1e-6 * double(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

TEST(Team, ComputesEveryPieceOnceForAllCounts) {
  for (const int threads : {1, 2, 3, 7}) {
    const Threads set(threads);
    for (const int64_t count : {0, 1, 2, 6, 7, 8, 1000})
      for (const int64_t grain : {0, 1, 3, 2000}) {
        std::vector<std::atomic<int>> seen(size_t(count) + 1);
        const auto body = [&](int thread, int64_t begin, int64_t end) {
          EXPECT_TRUE(thread >= 0 && thread < threads);
          for (int64_t i = begin; i < end; ++i) ++seen[size_t(i)];
        };
        grain == 0 ? shares(count, body) : in_turn(count, grain, body);
        for (int64_t i = 0; i < count; ++i)
          ASSERT_EQ(seen[size_t(i)], 1) << threads << " " << count << " " << grain;
        EXPECT_EQ(seen[size_t(count)], 0);
      }
  }
}

// A running helper that is delayed, as by another process on its core, keeps only its current piece.
TEST(Team, TakesOverUnstartedPiecesOfADelayedThread) {
  const Threads set(2);
  const auto until = [](const auto& holds) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!holds() && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    return holds();
  };
  std::atomic<bool> came{false}, met{false};
  std::atomic<int64_t> done{0};
  shares(100, [&](int thread, int64_t begin, int64_t end) {
    const int64_t mine = end - begin;
    if (thread == 1 && !came.exchange(true)) met = until([&] { return done == 100 - mine; });
    if (thread == 0) {
      EXPECT_TRUE(until([&] { return came.load(); }));
    }
    done += mine;
  });
  EXPECT_TRUE(met);
  EXPECT_EQ(done, 100);
}

TEST(Team, SeesWhatTheCallerWroteAndShowsWhatItWrites) {
  const Threads set(3);
  std::vector<int64_t> x(3000), y(3000);
  for (int64_t round = 0; round < 2000; ++round) {
    for (auto& v : x) v = round;
    shares(3000, [&](int, int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) y[size_t(i)] = x[size_t(i)] + i;
    });
    for (int64_t i = 0; i < 3000; i += 999) ASSERT_EQ(y[size_t(i)], round + i);
  }
}

TEST(Team, RunsANestedLoopOnItsThread) {
  const Threads set(2);
  std::atomic<int64_t> sum{0};
  shares(2, [&](int, int64_t, int64_t) {
    const auto outer = std::this_thread::get_id();
    shares(100, [&](int thread, int64_t begin, int64_t end) {
      EXPECT_EQ(std::this_thread::get_id(), outer);
      EXPECT_EQ(thread, 0);
      sum += end - begin;
    });
  });
  EXPECT_EQ(sum, 200);
}

TEST(Team, IsOneForEachCallingThread) {
  const Threads set(2);
  std::vector<std::thread> callers;
  std::atomic<int64_t> sum{0};
  for (int c = 0; c < 4; ++c)
    callers.emplace_back([&] {
      for (int round = 0; round < 200; ++round)
        shares(64, [&](int, int64_t begin, int64_t end) { sum += end - begin; });
      EXPECT_EQ(team_statistics().helpers, 1);
      EXPECT_EQ(team_statistics().loops, 200);
    });
  for (std::thread& t : callers) t.join();
  EXPECT_EQ(sum, 4 * 200 * 64);
}

TEST(Team, AdoptsAChangedNumberOfThreads) {
  std::thread([] {
    for (const int threads : {2, 4, 3}) {
      const Threads set(threads);
      std::atomic<int> used{0};
      shares(threads, [&](int, int64_t begin, int64_t end) { used += int(end - begin == 1); });
      EXPECT_EQ(used, threads);
    }
    EXPECT_EQ(team_statistics().helpers, 3);
  }).join();
}

// A spinning helper would use a whole core while the caller does something else.
TEST(Team, SleepsWhileIdle) {
  const Threads set(3);
  const auto once = [] { shares(3, [](int, int64_t, int64_t) {}); };
  once();
  const int64_t before = team_statistics().sleeps;
  const double cpu = cpu_seconds();
  for (int i = 0; i < 20; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    once();
  }
  EXPECT_GE(team_statistics().sleeps - before, 20);
  EXPECT_LT(cpu_seconds() - cpu, 0.05);  // of 0.4 s that two spinning helpers would use
}

// The caller also sleeps while it waits for a late helper.
TEST(Team, SleepsWhileAHelperIsLate) {
  const Threads set(2);
  const double cpu = cpu_seconds();
  for (int i = 0; i < 20; ++i)
    shares(2, [](int thread, int64_t, int64_t) {
      if (thread == 1) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    });
  EXPECT_LT(cpu_seconds() - cpu, 0.05);  // of 0.2 s that a spinning caller would use
}

// Without a pause, a helper often wakes after its share was taken and the next loop has begun.
TEST(Team, ComputesEveryPieceOnceWhenTheCallerTakesSharesOver) {
  const Threads set(4);
  std::vector<std::atomic<int>> seen(64);
  for (int round = 1; round <= 20000; ++round) {
    shares(int64_t(seen.size()), [&](int, int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) ++seen[size_t(i)];
    });
    for (const auto& count : seen) ASSERT_EQ(count, round);
  }
}

TEST(Team, WorksInAForkedChildWhichCanExit) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer allows no new threads in a child of a process with threads";
#endif
  const Threads set(2);
  // A starting thread may hold an address sanitizer lock that the child would wait for.
  std::atomic<bool> helped{false};
  shares(2, [&](int thread, int64_t, int64_t) {
    if (thread == 1) helped = true;
    while (!helped) std::this_thread::yield();
  });
  const pid_t child = fork();
  if (child == 0) {
    std::atomic<int64_t> sum{0};
    shares(100, [&](int, int64_t begin, int64_t end) { sum += end - begin; });
    std::exit(sum == 100 ? 7 : 8);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 7);
}

}  // namespace
}  // namespace cleave
