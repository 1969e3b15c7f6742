#include "core/units.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "tests/scratch.h"

namespace cleave {
namespace {

TEST(Units, ParseHumanReadableSizes) {
  EXPECT_EQ(parse_bytes("123", "x"), 123);
  EXPECT_EQ(parse_bytes("64KiB", "x"), 65536);
  EXPECT_EQ(parse_bytes("1.5 GiB", "x"), 1610612736);
  EXPECT_EQ(parse_bytes("2GB", "x"), 2000000000);
  EXPECT_EQ(parse_bytes("2 tib", "x"), int64_t{2} << 40);
  EXPECT_EQ(parse_bytes("10b", "x"), 10);
}

TEST(Units, RejectInvalidSizes) {
  for (const char* bad : {"", "GiB", "-1", "1.5XB", "1e30", "nan", "inf", "12 apples", "1KiBB"}) {
    expect_error(Exit::usage, {"--limit"}, [&] { parse_bytes(bad, "--limit"); });
  }
}

TEST(Units, FormatSizesAndCounts) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(10239), "10239 B");
  EXPECT_EQ(format_bytes(10240), "10.00 KiB");
  EXPECT_EQ(format_bytes(int64_t{3} << 29), "1.50 GiB");
  EXPECT_EQ(format_bytes(int64_t{5} << 40), "5.00 TiB");
  EXPECT_EQ(format_count(812), "812");
  EXPECT_EQ(format_count(124'439'808), "124.4 M");
  EXPECT_EQ(format_count(1'557'611'200), "1.56 B");
}

}  // namespace
}  // namespace cleave
