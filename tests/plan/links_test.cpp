// Groups of a job with ranks on several nodes, against a count over all ranks of the mesh.
#include <gtest/gtest.h>

#include <algorithm>

#include "plan/job_plan.h"
#include "tests/runtime/small_models.h"

namespace cleave::testing {
namespace {

struct Layout {
  int pipe, data, sequence, tensor, near;
};

plan::JobPlan plan_for(const Layout& l, int ranks_per_node) {
  config::DsConfig c = config_for(l.data, 1, 2);
  c.pipeline.stages = l.pipe, c.sequence_parallel_size = l.sequence, c.tensor_parallel.autotp_size = l.tensor;
  c.zero.stage = l.near > 1 ? 3 : 1, c.zero.mics_shard_size = l.near > 1 ? l.near : 0;
  const plan::EngineMaker make = [&](comm::Communicator& ranks, const runtime::EngineOptions& options) {
    return std::make_unique<runtime::Engine>(
        c,
        [&](const model::Axes& axes) {
          return model::make_model(model::kGpt2,
                                   {.vocab = 32, .positions = 16, .width = 16, .layers = 4, .heads = 4},
                                   DType::fp32, 16, "narrow", axes);
        },
        ranks, options);
  };
  return plan::plan_job(c, l.pipe * l.data * l.sequence * l.tensor, make, {.ranks_per_node = ranks_per_node});
}

// Meaning of the groups' names.
bool share(const RankGroup& what, const MeshPlace& a, const MeshPlace& b, const Layout& l) {
  const std::string group = name_of(what);
  const int row_a = a.data * l.sequence + a.sequence, row_b = b.data * l.sequence + b.sequence;
  const bool pipe = a.pipe == b.pipe, row = row_a == row_b, tensor = a.tensor == b.tensor;
  if (group == "tensor") return pipe && row;
  if (group == "sequence") return pipe && tensor && a.data == b.data;
  if (group == "data") return pipe && tensor;
  if (group == "data near") return pipe && tensor && row_a / l.near == row_b / l.near;
  if (group == "data across") return pipe && tensor && row_a % l.near == row_b % l.near;
  if (group.starts_with("pipe")) return row && tensor;
  return true;
}

TEST(Links, LeaveANodeIfARankOfTheGroupIsOnAnother) {
  int groups = 0, between = 0;
  for (const Layout& l : {Layout{1, 4, 1, 2, 1}, Layout{2, 3, 1, 2, 1}, Layout{2, 2, 2, 2, 1},
                          Layout{1, 4, 1, 2, 2}, Layout{1, 6, 1, 1, 3}, Layout{4, 2, 1, 1, 1}})
    for (const int per_node : {1, 2, 3, 4, 6, 8, 16}) {
      const plan::JobPlan plan = plan_for(l, per_node);
      for (const plan::RankPlan& r : plan.ranks)
        for (const plan::GroupTraffic& t : r.sent)
          for (const int rank : r.ranks) {
            bool leaves = false;
            for (int other = 0; other < plan.mesh.size(); ++other)
              leaves |= share(t.group, plan.mesh.place(rank), plan.mesh.place(other), l) &&
                        rank / per_node != other / per_node;
            EXPECT_EQ(t.between_nodes, leaves)
                << name_of(t.group) << " of rank " << rank << " with " << per_node << " a node";
            ++groups, between += leaves;
          }
    }
  EXPECT_GT(groups, 100);
  EXPECT_GT(between, 20);
  EXPECT_LT(between, groups);
}

TEST(Links, AreInThePlan) {
  const plan::JobPlan plan = plan_for({2, 2, 1, 2, 1}, 4);  // one stage per node
  EXPECT_NE(plan::format(plan).find(" between nodes"), std::string::npos) << plan::format(plan);
  EXPECT_NE(plan::to_json(plan).find("\"tensor\": \"inside a node\""), std::string::npos);
  int64_t crossing = 0;
  for (const plan::GroupTraffic& t : plan.ranks[0].sent)
    if (t.group.axis == Axis::pipe || t.group.axis == Axis::world) crossing += t.total();
  EXPECT_EQ(plan.ranks[0].sent_between_nodes(), crossing);
  EXPECT_GT(crossing, 0);
}

}  // namespace
}  // namespace cleave::testing
