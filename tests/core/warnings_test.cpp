#include "core/warnings.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace cleave {
namespace {

std::vector<std::string> heard;

TEST(Warnings, ReachListenersWithTheirTextAlsoEarlierOnes) {
  testing::internal::CaptureStderr();
  warn("disk {}: {} is full", 3, "it");
  note_warning("printed elsewhere");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "warning: disk 3: it is full\n");
  heard.clear();
  {
    const WarningListener listener([](const std::string& text) { heard.push_back(text); });
    note_warning("later");
  }
  note_warning("after the listener");
  ASSERT_GE(heard.size(), 3U);
  EXPECT_EQ(std::vector(heard.end() - 3, heard.end()),
            (std::vector<std::string>{"disk 3: it is full", "printed elsewhere", "later"}));
}

TEST(Warnings, AListenerMayWarnAndControlCharactersAreEscaped) {
  testing::internal::CaptureStderr();
  int calls = 0;
  {
    const WarningListener listener([&](const std::string& text) {
      if (text == "first \x1b[0m" && ++calls == 1) warn("second");
    });
    warn("first {}", "\x1b[0m");
  }
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "warning: first \\x1b[0m\nwarning: second\n");
}

}  // namespace
}  // namespace cleave
