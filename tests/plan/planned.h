// Plans, and trainings that must match them.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>

#include "plan/job_plan.h"
#include "tests/runtime/small_models.h"

namespace cleave::testing {

using Make = std::function<model::Model()>;

inline runtime::ModelFactory factory_of(const Make& whole) {
  return [whole](const model::Axes&) { return whole(); };
}

inline plan::JobPlan plan_for(const config::DsConfig& config, int world, const runtime::ModelFactory& model) {
  return plan::plan_job(config, world, [&](comm::Communicator& ranks, const runtime::EngineOptions& options) {
    return std::make_unique<runtime::Engine>(config, model, ranks, options);
  });
}
inline plan::JobPlan plan_for(const config::DsConfig& config, int world, const Make& model) {
  return plan_for(config, world, factory_of(model));
}

inline const plan::RankPlan& of_rank(const plan::JobPlan& plan, int rank) {
  for (const plan::RankPlan& r : plan.ranks)
    if (std::find(r.ranks.begin(), r.ranks.end(), rank) != r.ranks.end()) return r;
  fail(Exit::internal, "the plan has no rank {}", rank);
}

// Trains two steps; the second must send the planned bytes, and peak memory must equal the plan.
inline void expect_planned(const config::DsConfig& config, int world, const runtime::ModelFactory& model,
                           const std::string& layout, int64_t seq = kSeq) {
  const plan::JobPlan plan = plan_for(config, world, model);
  comm::run_ranks(world, [&](comm::Communicator& ranks) {
    runtime::Engine engine(config, model, ranks, {});
    Tokens tokens(config.train_micro_batch_size_per_gpu, seq);
    const int place = engine.mesh().place(ranks.rank()).data, data = engine.mesh().data;
    engine.train_batch(source(tokens, config, 0, place, data));
    const auto before = engine.comm_bytes_by_group();
    engine.train_batch(source(tokens, config, 1, place, data));
    auto sent = engine.comm_bytes_by_group();
    for (size_t g = 0; g < sent.size(); ++g)
      for (int c = 0; c < comm::kCollectives; ++c)
        sent[g].second.sent[size_t(c)] -= before[g].second.sent[size_t(c)];
    const plan::RankPlan& planned = of_rank(plan, ranks.rank());
    EXPECT_EQ(planned.memory, engine.memory_live()) << "at rest, " << layout << ", rank " << ranks.rank();
    EXPECT_EQ(planned.memory, engine.memory_peak()) << layout << ", rank " << ranks.rank();
    ASSERT_EQ(planned.sent.size(), sent.size()) << layout;
    for (size_t g = 0; g < sent.size(); ++g) {
      EXPECT_EQ(planned.sent[g].group, sent[g].first) << layout << ", rank " << ranks.rank();
      EXPECT_EQ(planned.sent[g].bytes, sent[g].second) << layout << ", rank " << ranks.rank();
    }
  });
}

inline void expect_planned(const config::DsConfig& config, int world, const Make& model,
                           const std::string& layout) {
  expect_planned(config, world, factory_of(model), layout);
}

}  // namespace cleave::testing
