// Compares the grid arithmetic with its definition: members of a group differ in one coordinate only.
#include "core/mesh_shape.h"

#include <gtest/gtest.h>

#include <vector>

namespace cleave {
namespace {

constexpr MeshShape kShapes[] = {{}, {2, 3, 1, 2}, {1, 4, 2, 2}, {3, 2, 2, 1}, {2, 2, 3, 4}, {1, 6, 1, 1}};

std::vector<int> ranks_of(const RankRun& run) {
  std::vector<int> ranks;
  for (int i = 0; i < run.count; ++i) ranks.push_back(run[i]);
  return ranks;
}

// Ranks with the place of `rank`, except for the coordinates that `forget` sets to zero.
template <class Forget>
std::vector<int> alike(const MeshShape& shape, int rank, Forget forget) {
  const auto key = [&](int r) {
    MeshPlace p = shape.place(r);
    forget(p);
    return p;
  };
  std::vector<int> ranks;
  for (int r = 0; r < shape.size(); ++r)
    if (key(r) == key(rank)) ranks.push_back(r);
  return ranks;
}

TEST(MeshShape, NumbersRanksWithTensorInnermostAndPipeOutermost) {
  for (const MeshShape& s : kShapes) {
    int rank = 0;
    for (int p = 0; p < s.pipe; ++p)
      for (int d = 0; d < s.data; ++d)
        for (int q = 0; q < s.sequence; ++q)
          for (int t = 0; t < s.tensor; ++t, ++rank) {
            EXPECT_EQ(s.place(rank), (MeshPlace{p, d, q, t}));
            EXPECT_EQ(s.rank({p, d, q, t}), rank);
          }
    EXPECT_EQ(rank, s.size());
  }
}

TEST(MeshShape, MembersOfAnAxisDifferInThisAxisOnly) {
  for (const MeshShape& s : kShapes)
    for (int rank = 0; rank < s.size(); ++rank) {
      const MeshPlace p = s.place(rank);
      const auto of = [&](Axis axis) { return ranks_of(s.members(axis, p)); };
      EXPECT_EQ(of(Axis::pipe), alike(s, rank, [](MeshPlace& q) { q.pipe = 0; }));
      EXPECT_EQ(of(Axis::data), alike(s, rank, [](MeshPlace& q) { q.data = q.sequence = 0; }));
      EXPECT_EQ(of(Axis::sequence), alike(s, rank, [](MeshPlace& q) { q.sequence = 0; }));
      EXPECT_EQ(of(Axis::tensor), alike(s, rank, [](MeshPlace& q) { q.tensor = 0; }));
      EXPECT_EQ(of(Axis::world), alike(s, rank, [](MeshPlace& q) { q = {}; }));
      for (const Axis axis : {Axis::world, Axis::pipe, Axis::data, Axis::sequence, Axis::tensor}) {
        const RankRun run = s.members(axis, p);
        EXPECT_EQ(run[run.index_of(rank)], rank);
        EXPECT_EQ(run.last(), ranks_of(run).back());
      }
    }
}

TEST(MeshShape, NearRanksAreConsecutiveOnTheDataAxisAndAcrossGroupsHaveOneOfEach) {
  const MeshShape s{.pipe = 2, .data = 3, .sequence = 2, .tensor = 2};
  const RankGroup near{Axis::data, RankGroup::Purpose::near}, across{Axis::data, RankGroup::Purpose::across};
  // The sharers of rank 17, on the second stage with the second part of each layer: 13 15 17 19 21 23.
  const MeshPlace p = s.place(17);
  EXPECT_EQ(ranks_of(s.members(Axis::data, p)), (std::vector<int>{13, 15, 17, 19, 21, 23}));
  EXPECT_EQ(ranks_of(s.members(near, p, 3)), (std::vector<int>{13, 15, 17}));
  EXPECT_EQ(ranks_of(s.members(across, p, 3)), (std::vector<int>{17, 23}));
  EXPECT_EQ(ranks_of(s.members(near, p, 2)), (std::vector<int>{17, 19}));
  EXPECT_EQ(ranks_of(s.members(across, p, 2)), (std::vector<int>{13, 17, 21}));
}

// 2 x 3 x 2 x 2 ranks, pipe outermost: ranks that differ in the data axis only, not in the axis inside it.
TEST(MeshShape, RanksWithTheSamePartsHaveOnePlaceOnTheInnerAxes) {
  const MeshShape shape{.pipe = 2, .data = 3, .sequence = 2, .tensor = 2};
  const RankRun run = shape.members({Axis::data, RankGroup::Purpose::parts},
                                    {.pipe = 1, .data = 2, .sequence = 1, .tensor = 1}, 0);
  EXPECT_EQ(run, (RankRun{12 + 2 + 1, 3, 4}));
  EXPECT_EQ((MeshShape{.data = 3}.members({Axis::data, RankGroup::Purpose::parts}, {.data = 1}, 0)),
            (RankRun{0, 3, 1}));
}

TEST(RankGroup, PrintsAxisAndPurpose) {
  EXPECT_EQ(name_of(RankGroup{}), "world");
  EXPECT_EQ(name_of(RankGroup{Axis::tensor}), "tensor");
  EXPECT_EQ(name_of(RankGroup{Axis::pipe, RankGroup::Purpose::activations}), "pipe activations");
  EXPECT_EQ(name_of(RankGroup{Axis::pipe, RankGroup::Purpose::gradients}), "pipe gradients");
  EXPECT_EQ(name_of(RankGroup{Axis::data, RankGroup::Purpose::near}), "data near");
  EXPECT_EQ(name_of(RankGroup{Axis::data, RankGroup::Purpose::across}), "data across");
  EXPECT_EQ(name_of(RankGroup{Axis::data, RankGroup::Purpose::parts}), "data parts");
  EXPECT_EQ(name_of(RankGroup{Axis::pipe, RankGroup::Purpose::tied, "wte"}), "tied wte");
}

TEST(MeshCut, GivesTheQuotientToTheDataAxis) {
  EXPECT_EQ(cut_world(24, 2, 3, 2).data, 2);
  EXPECT_FALSE(cut_world(24, 2, 3, 2).refused);
  EXPECT_EQ(cut_world(7, 1, 1, 1).data, 7);
}

TEST(MeshCut, NamesTheFirstAxisThatDoesNotDivideAndItsRanks) {
  const auto refused = [](const MeshCut& cut) { return std::pair(cut.refused, cut.ranks); };
  EXPECT_EQ(refused(cut_world(6, 4, 5, 7)), std::pair(std::optional(Axis::pipe), int64_t{6}));
  EXPECT_EQ(refused(cut_world(6, 3, 4, 7)), std::pair(std::optional(Axis::tensor), int64_t{2}));
  EXPECT_EQ(refused(cut_world(12, 3, 2, 3)), std::pair(std::optional(Axis::sequence), int64_t{2}));
  EXPECT_EQ(cut_world(6, 0, 1, 1).refused, Axis::pipe);  // no division by zero
}

TEST(Divisors, ListsAllDivisors) {
  EXPECT_EQ(divisors(1), "1");
  EXPECT_EQ(divisors(12), "1, 2, 3, 4, 6, 12");
}

}  // namespace
}  // namespace cleave
