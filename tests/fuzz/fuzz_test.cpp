// Every reader with generated broken files. FUZZ_CASES=10000000 tries this many of each; the
// default is a few thousand. The programs of fuzzers.cpp search for new code paths.
#include <gtest/gtest.h>

#include <cstdlib>

#include "core/error.h"
#include "tests/fuzz/mutation.h"
#include "tests/fuzz/readers.h"

namespace cleave {
namespace {

class BrokenFiles : public ::testing::TestWithParam<FuzzedReader> {};

TEST_P(BrokenFiles, AreReadOrErrors) {
  const FuzzedReader& reader = GetParam();
  const char* asked = std::getenv("FUZZ_CASES");
  const int64_t cases = asked ? std::atoll(asked) : 4000;
  const std::vector<std::string> seeds = reader.seeds();
  for (const std::string& seed : seeds) reader.read(seed);
  ASSERT_TRUE(reader.read(seeds.at(0))) << "a valid file is rejected";
  int64_t read = 0;
  Mutation mutation(1);
  for (int64_t i = 0; i < cases; ++i) {
    const std::string broken = mutation.of(seeds[size_t(i) % seeds.size()]);
    try {
      read += reader.read(broken);
    } catch (const std::exception& e) {
      FAIL() << e.what() << "\nof " << ::testing::PrintToString(broken);
    }
  }
  EXPECT_GT(read, cases / 200) << "the changes are so large that only the parser is tested";
  EXPECT_GT(cases - read, cases / 10);
}

INSTANTIATE_TEST_SUITE_P(Readers, BrokenFiles, ::testing::ValuesIn(fuzzed_readers()),
                         [](const auto& param) { return std::string(param.param.name); });

}  // namespace
}  // namespace cleave
