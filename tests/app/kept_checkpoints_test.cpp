#include "app/run/kept_checkpoints.h"

#include <gtest/gtest.h>

namespace cleave::testing {
namespace {

using Steps = std::vector<int64_t>;

struct Line {
  Steps there;  // including the one just saved
  int64_t saved, best;
  app::KeepRule rule;
  Steps go;
};

TEST(KeptCheckpoints, AreTheNewestTheMultiplesTheBestAndNoOther) {
  const Line table[] = {
      // Keeps every checkpoint without a limit, and up to the limit.
      {{5, 10, 15}, 15, -1, {0, 0}, {}},
      {{5, 10, 15}, 15, -1, {0, 10}, {}},
      {{5, 10, 15}, 15, -1, {3, 0}, {}},
      {{5, 10, 15}, 15, -1, {9, 0}, {}},
      {{5}, 5, -1, {1, 0}, {}},
      {{}, 5, -1, {1, 0}, {}},
      // Keeps the newest.
      {{5, 10, 15}, 15, -1, {1, 0}, {5, 10}},
      {{15, 5, 10}, 15, -1, {2, 0}, {5}},
      // A multiple also counts as one of the newest: 45 does not replace it.
      {{45, 50}, 50, -1, {1, 10}, {45}},
      {{10, 20, 30, 40, 45, 50}, 50, -1, {1, 10}, {45}},
      {{10, 20, 30, 40, 45, 50}, 50, -1, {2, 10}, {}},
      {{10, 15, 20, 25}, 25, -1, {1, 10}, {15}},
      {{0, 1, 2}, 2, -1, {1, 10}, {1}},
      // The best one also counts.
      {{5, 10, 15}, 15, 5, {1, 0}, {10}},
      {{5, 10, 15}, 15, 15, {1, 0}, {5, 10}},
      {{5, 10, 15}, 15, 10, {2, 0}, {5}},
      {{5, 10, 15, 20, 25}, 25, 5, {1, 10}, {15}},
      // Later checkpoints exist after resuming an older one; they neither count nor are removed.
      {{5, 6, 7, 8, 9}, 7, -1, {1, 0}, {5, 6}},
      {{5, 6, 7, 8, 9}, 7, 9, {2, 0}, {5}},
      // Two folders of one step count once.
      {{5, 10, 10, 15}, 15, -1, {2, 0}, {5}},
      {{5, 10, 10, 15}, 15, -1, {1, 0}, {5, 10}},
  };
  for (const Line& l : table)
    EXPECT_EQ(app::steps_to_let_go(l.there, l.saved, l.best, l.rule), l.go) << "line " << &l - table;
}

TEST(KeptCheckpoints, CountTheOneThatIsWritten) {
  EXPECT_EQ(app::most_checkpoints(100, 0, {2, 0}), 1) << "one, at the end";
  EXPECT_EQ(app::most_checkpoints(100, 10, {2, 0}), 3);
  EXPECT_EQ(app::most_checkpoints(15, 10, {2, 0}), 2) << "steps 10 and 15";
  EXPECT_EQ(app::most_checkpoints(100, 10, {0, 0}), 10) << "all";
  EXPECT_EQ(app::most_checkpoints(95, 10, {0, 0}), 10);
  EXPECT_EQ(app::most_checkpoints(100, 5, {1, 20}), 6) << "20 to 80, 95 and 100";
  EXPECT_EQ(app::most_checkpoints(1'000'000'000, 1, {1, 0}), 2);
}

}  // namespace
}  // namespace cleave::testing
