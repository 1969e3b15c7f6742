// Selection of the instruction set. It happens once per process, so each case is a separate run.
#include <gtest/gtest.h>

#include <cstdlib>

#include "core/error.h"
#include "kernels/cpu/bodies.h"

namespace cleave::kernels {
namespace {

// Exits with the code and message of a process with CLEAVE_ISA=value.
void choose_with(const char* value) {
  setenv("CLEAVE_ISA", value, 1);
  try {
    const bool v4 = cpu::isa() == cpu::Isa::v4;
    std::exit(v4 ? 40 : 30);
  } catch (const Error& e) {
    std::fprintf(stderr, "%s\n", e.what());
    std::exit(int(e.exit()));
  }
}

class IsaDeathTest : public ::testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(IsaDeathTest, SelectsTheLowerSetOnRequestAndTheBestByDefault) {
  const bool v4 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                  __builtin_cpu_supports("avx512vl");
  EXPECT_EXIT(choose_with("v3"), ::testing::ExitedWithCode(30), "");
  EXPECT_EXIT(choose_with(""), ::testing::ExitedWithCode(v4 ? 40 : 30), "");
  EXPECT_EXIT(choose_with("v4"), ::testing::ExitedWithCode(v4 ? 40 : int(Exit::usage)), "");
}

TEST_F(IsaDeathTest, RejectsOtherValues) {
  for (const char* word : {"V3", "v5", "avx2", "v3 ", "0"})
    EXPECT_EXIT(choose_with(word), ::testing::ExitedWithCode(int(Exit::usage)), "expected v3 .AVX2. or v4")
        << word;
}

}  // namespace
}  // namespace cleave::kernels
