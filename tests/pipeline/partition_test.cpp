#include "pipeline/partition.h"

#include <gtest/gtest.h>

#include "core/philox.h"
#include "tests/scratch.h"

namespace cleave::pipeline {
namespace {

std::vector<LayerCost> layers(const std::vector<double>& flops) {
  std::vector<LayerCost> out;
  for (size_t i = 0; i < flops.size(); ++i)
    out.push_back({fmt::format("h.{}", i), int64_t(flops[i]), flops[i], 0});
  return out;
}

std::vector<int64_t> sizes(const std::vector<Range>& pieces) {
  std::vector<int64_t> out;
  for (const Range& r : pieces) out.push_back(r.size());
  return out;
}

std::string refusal(const std::string& method, int pieces, size_t count = 5) {
  return error_text(Exit::usage,
                    [&] { partition_layers(layers(std::vector<double>(count, 1)), {}, pieces, method); });
}

using Sizes = std::vector<int64_t>;

TEST(Partition, UniformGivesTheFirstPiecesOneMore) {
  EXPECT_EQ(sizes(partition_layers(layers(std::vector<double>(11, 1)), {}, 4, "uniform")),
            (Sizes{3, 3, 3, 2}));
  EXPECT_EQ(sizes(partition_layers(layers({1, 1, 1}), {}, 3, "uniform")), (Sizes{1, 1, 1}));
}

TEST(Partition, UsesAListUnchanged) {
  EXPECT_EQ(sizes(partition_layers(layers(std::vector<double>(7, 1)), {}, 3, "1,4,2")), (Sizes{1, 4, 2}));
}

TEST(Partition, TypeCountsLayersWithAMatchingName) {
  std::vector<LayerCost> l = layers({1, 1, 1, 1});
  l.insert(l.begin(), {"wte", 1000, 1000, 0});
  l.push_back({"ln_f", 1, 1, 0});
  EXPECT_EQ(partition_layers(l, {}, 2, "type:^H\\.")[0].end, 3);
}

TEST(Partition, TheHeadAndTheEmbeddingCount) {
  std::vector<LayerCost> l = layers({0, 10, 10, 10, 10, 0});
  // The head costs as much as two blocks, so the last stage has one other block.
  EXPECT_EQ(sizes(partition_layers(l, {"head", 20, 20, 0}, 2, "balanced")), (Sizes{4, 2}));
  EXPECT_EQ(sizes(partition_layers(l, {"head", 20, 20, 0}, 2, "parameters")), (Sizes{4, 2}));
  l[0].bytes = 4;  // as expensive as four blocks
  EXPECT_EQ(sizes(partition_layers(l, {"head", 20, 20, 0}, 2, "balanced")), (Sizes{2, 4}));
}

// Optimum by trying every cut.
double best_of_all(const std::vector<double>& w, double head, size_t begin, int pieces) {
  double sum = 0;
  if (pieces == 1) {
    for (size_t i = begin; i < w.size(); ++i) sum += w[i];
    return sum + head;
  }
  double best = 1e300;
  for (size_t end = begin + 1; end + size_t(pieces) - 1 <= w.size(); ++end) {
    sum += w[end - 1];
    best = std::min(best, std::max(sum, best_of_all(w, head, end, pieces - 1)));
  }
  return best;
}

TEST(Partition, NoOtherDivisionHasASmallerLargestPiece) {
  for (uint64_t round = 0; round < 60; ++round) {
    const Philox random{7, round};
    std::vector<double> w;
    for (uint64_t i = 0; i < 9; ++i) w.push_back(double(random.word(i) % 20));
    const double head = double(random.word(99) % 40);
    for (int pieces : {2, 3, 4, 9}) {
      const std::vector<Range> got = partition_layers(layers(w), {"head", 0, head, 0}, pieces, "balanced");
      double largest = 0;
      int64_t at = 0;
      for (size_t p = 0; p < got.size(); ++p) {
        EXPECT_EQ(got[p].begin, at);
        EXPECT_GT(got[p].size(), 0);
        at = got[p].end;
        double sum = p + 1 == got.size() ? head : 0;
        for (int64_t i = got[p].begin; i < got[p].end; ++i) sum += w[size_t(i)];
        largest = std::max(largest, sum);
      }
      EXPECT_EQ(at, 9);
      EXPECT_EQ(largest, best_of_all(w, head, 0, pieces)) << round << " " << pieces;
    }
  }
}

TEST(Partition, RejectsInvalidMethodsAndNamesValidOnes) {
  EXPECT_NE(refusal("best", 2).find("use balanced, parameters, uniform, type:REGEX"), std::string::npos);
  EXPECT_NE(refusal("type:(", 2).find("\": invalid regular expression"), std::string::npos);
  EXPECT_NE(refusal("type:transformer", 2).find("they are called h.0, ..., h.4"), std::string::npos);
  for (const char* list : {"2,2", "1,2,2", "5", "0,5", "2,3,", "2;3", "2,3x", "9999999999999999999,1"})
    EXPECT_NE(refusal(list, 2).find("add up to 5"), std::string::npos) << list;
  EXPECT_EQ(refusal("balanced", 6),
            "pipeline.stages * pipeline.virtual_stages: too many pieces (got 6 for 5 layers, expected at "
            "most 5); each piece needs a layer");
}

TEST(Partition, TheReportNamesTheLayersOfEachPieceAndTheIdleShare) {
  const std::vector<LayerCost> l = layers({10, 10, 10, 10});
  const LayerCost head{"head", 20, 20, 0};
  const std::vector<Range> pieces = partition_layers(l, head, 2, "balanced");
  const Schedule s = make_schedule("1f1b", {2, 4, 1});
  EXPECT_EQ(format_pipeline("1f1b", s.shape, l, head, pieces,
                            simulate(s, {.work = work_of_pieces(l, head, pieces)})),
            "pipeline: 2 stages, 4 micro-batches, 1f1b; expected idle share 20.0 %\n"
            "  stage 0 has h.0..h.2 (30 parameters, 50 % of the work)\n"
            "  stage 1 has h.3 + head (30 parameters, 50 % of the work)");
  const Schedule few = make_schedule("1f1b", {2, 1, 1});
  const std::string text = format_pipeline("1f1b", few.shape, l, head, pieces, simulate(few));
  for (const char* part : {"2 stages, 1 micro-batch, 1f1b", "fewer micro-batches than stages"})
    EXPECT_NE(text.find(part), std::string::npos) << text;
}

TEST(Partition, TheReportNamesLayersWithoutASplitBackward) {
  std::vector<LayerCost> l = layers({10, 10, 10, 10});
  const LayerCost head{"head", 20, 20, 0};
  const std::vector<Range> pieces = {{0, 2}, {2, 4}};
  const Schedule zb = make_schedule("zb-h1", {2, 4, 1}), plain = make_schedule("1f1b", {2, 4, 1});
  const auto line = [&](const Schedule& s) {
    return format_pipeline("schedule", s.shape, l, head, pieces, simulate(s));
  };
  EXPECT_EQ(line(zb).find("split"), std::string::npos);
  EXPECT_EQ(split_shares(l, head, pieces), (std::vector<double>{1, 0.5}));
  l[3].splits = false;
  EXPECT_EQ(split_shares(l, head, pieces), (std::vector<double>{1, 0.25}));
  EXPECT_NE(line(zb).find("; 1 of 4 layers cannot split their backward and do it whole (h.3)"),
            std::string::npos)
      << line(zb);
  for (LayerCost& layer : l) layer.splits = false;
  EXPECT_EQ(split_shares(l, head, pieces), (std::vector<double>{0, 0}));
  EXPECT_NE(line(zb).find("; no layer of this model can split its backward, so the schedule gains nothing"),
            std::string::npos)
      << line(zb);
  EXPECT_EQ(line(plain).find("split"), std::string::npos);
}

}  // namespace
}  // namespace cleave::pipeline
