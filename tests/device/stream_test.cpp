#include "device/stream.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "core/error.h"
#include "tests/scratch.h"

namespace cleave {
namespace {

TEST(Stream, InlineRunsAtOnceAndThrowsFromEnqueue) {
  Stream stream;
  int value = 0;
  stream.enqueue([&] { value = 1; });
  EXPECT_EQ(value, 1);
  EXPECT_THROW(stream.enqueue([] { fail(Exit::data, "bad"); }), Error);
}

TEST(Stream, WorkerRunsTasksInOrder) {
  Stream stream(Stream::Mode::worker);
  std::vector<int> order;
  for (int i = 0; i < 100; ++i) stream.enqueue([&order, i] { order.push_back(i); });
  stream.synchronize();
  ASSERT_EQ(order.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[size_t(i)], i);
}

TEST(Stream, WaitingForAnEventOrdersTwoStreams) {
  for (int repeat = 0; repeat < 20; ++repeat) {
    Stream first(Stream::Mode::worker), second(Stream::Mode::worker);
    int value = 0, seen = 0;
    first.enqueue([&] {
      std::this_thread::yield();
      value = 7;
    });
    second.wait(first.record());
    second.enqueue([&] { seen = value; });
    second.synchronize();
    EXPECT_EQ(seen, 7);
    first.synchronize();
  }
}

TEST(Stream, SynchronizeThrowsTheFirstErrorAndLaterTasksAreSkipped) {
  Stream stream(Stream::Mode::worker);
  std::atomic<bool> skipped = true;
  stream.enqueue([] { fail(Exit::data, "token out of range"); });
  stream.enqueue([&] { skipped = false; });
  stream.record().wait();  // fires after a failure
  expect_error(Exit::data, {}, [&] { stream.synchronize(); });
  EXPECT_TRUE(skipped);
}

TEST(Stream, StartTaskRunsFirstAndDestructorFinishesTheWork) {
  int started = 0, done = 0;
  {
    Stream stream(Stream::Mode::worker, [&] { started = 1; });
    for (int i = 0; i < 50; ++i) stream.enqueue([&] { done += started; });
  }
  EXPECT_EQ(done, 50);
}

TEST(Event, DefaultConstructedIsReached) {
  EXPECT_EQ(Event().state(), nullptr);
  Event().wait();
  Stream stream(Stream::Mode::worker);
  stream.wait(Event());
  int ran = 0;
  stream.enqueue([&] { ran = 1; });
  stream.synchronize();
  EXPECT_EQ(ran, 1);
}

}  // namespace
}  // namespace cleave
