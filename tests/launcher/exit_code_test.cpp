// What a program says and returns when an exception leaves a thread of its own, where no main() can catch it.
#include "launcher/exit_code.h"

#include <gtest/gtest.h>

#include <csignal>
#include <new>
#include <stdexcept>
#include <thread>

#include "core/error.h"

namespace cleave::launcher {
namespace {

void in_a_thread(void (*body)()) {
  exit_code_of([&] {
    std::thread(body).join();
    return 0;
  });
}

TEST(ExitCodeDeathTest, OfAThreadThatGetsNoMemoryIsThatOfALackOfMemory) {
  EXPECT_EXIT(in_a_thread([] { throw std::bad_alloc(); }), testing::ExitedWithCode(int(Exit::memory)),
              "^error: out of host memory\n$");
}

TEST(ExitCodeDeathTest, OfAnyOtherExceptionOfAThreadIsASignalAndItsWords) {
  EXPECT_EXIT(in_a_thread([] { throw std::runtime_error("of its own"); }), testing::KilledBySignal(SIGABRT),
              "error: of its own .in another thread");
}

}  // namespace
}  // namespace cleave::launcher
