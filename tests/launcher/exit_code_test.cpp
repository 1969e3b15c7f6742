// Message and exit code after an exception that leaves a thread; main() cannot catch it.
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

TEST(ExitCodeDeathTest, OfAThreadWithoutMemoryIsExitMemory) {
  EXPECT_EXIT(in_a_thread([] { throw std::bad_alloc(); }), testing::ExitedWithCode(int(Exit::memory)),
              "^error: out of host memory\n$");
}

TEST(ExitCodeDeathTest, OfAnyOtherExceptionOfAThreadIsASignalWithItsMessage) {
  EXPECT_EXIT(in_a_thread([] { throw std::runtime_error("its message"); }), testing::KilledBySignal(SIGABRT),
              "error: its message .in another thread");
}

}  // namespace
}  // namespace cleave::launcher
