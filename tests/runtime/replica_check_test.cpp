// Weights that differ on one of their ranks: a test changes a bit in the memory of one rank.
#include <gtest/gtest.h>

#include <cstring>

#include "tests/runtime/cut_models.h"
#include "tests/scratch.h"

namespace cleave::testing {
namespace {

config::DsConfig checked(int stage, int ranks, config::ReplicaPolicy policy, int64_t steps = 3) {
  config::DsConfig c = config_for(ranks);
  c.zero.stage = stage;
  c.replica_check_steps = steps, c.replica_policy = policy;
  return c;
}

constexpr const char* kChanged = "h.1.mlp.c_fc.weight";

void flip_bit(runtime::Engine& engine) {
  const Tensor weight = engine.resident(kChanged);
  ASSERT_TRUE(weight.defined());
  weight.as<float>()[5] = -weight.as<float>()[5];
}

std::vector<float> values(runtime::Engine& engine) {
  const Tensor weight = engine.resident(kChanged);
  return {weight.as<float>(), weight.as<float>() + weight.numel()};
}

// Trains three steps, changes rank 1's memory, and trains up to `more` steps. Returns the error of each rank.
std::vector<std::string> train_with_fault(
    const config::DsConfig& c, int ranks, int more,
    const std::function<void(runtime::Engine&, comm::Communicator&)>& then = {}) {
  std::vector<std::string> errors(static_cast<size_t>(ranks));
  comm::run_ranks(ranks, [&](comm::Communicator& world) {
    runtime::Engine engine(c, small_gpt(), world, {});
    train(engine, world, 3);
    if (world.rank() == 1) flip_bit(engine);
    errors[size_t(world.rank())] = error_text(Exit::training, [&] { train(engine, world, more); });
    if (then) then(engine, world);
  });
  return errors;
}

TEST(ReplicaCheck, StopsAllRanksAndNamesTheRankAndTheWeight) {
  const std::vector<std::string> errors = train_with_fault(checked(0, 3, config::ReplicaPolicy::stop), 3, 5);
  for (const std::string& error : errors) EXPECT_EQ(error, errors[0]);
  EXPECT_NE(errors[0].find("h.1.mlp.c_fc.weight: rank 1 differs from ranks 0, 2 (first seen in step "),
            std::string::npos)
      << errors[0];
  EXPECT_NE(errors[0].find("cleave.replica_policy"), std::string::npos) << errors[0];
}

TEST(ReplicaCheck, FindsADifferenceWithinTheGivenSteps) {
  for (const int64_t steps : {1, 3}) {
    const std::string error =
        train_with_fault(checked(0, 2, config::ReplicaPolicy::stop, steps), 2, int(steps) + 1)[0];
    EXPECT_NE(error.find("rank 1 differs from rank 0"), std::string::npos) << steps << error;
  }
}

TEST(ReplicaCheck, RepairsMastersStatesAndWeights) {
  std::vector<std::vector<float>> after(3);
  const std::vector<std::string> errors =
      train_with_fault(checked(0, 3, config::ReplicaPolicy::repair), 3, 8,
                       [&](runtime::Engine& engine, comm::Communicator& world) {
                         after[size_t(world.rank())] = values(engine);
                       });
  EXPECT_EQ(errors, std::vector<std::string>(3));
  EXPECT_EQ(after[1], after[0]);
  EXPECT_EQ(after[2], after[0]);
}

TEST(ReplicaCheck, OnlyWarnsIfAsked) {
  std::vector<std::vector<float>> after(2);
  ::testing::internal::CaptureStderr();
  train_with_fault(checked(0, 2, config::ReplicaPolicy::warn), 2, 5,
                   [&](runtime::Engine& engine, comm::Communicator& world) {
                     after[size_t(world.rank())] = values(engine);
                   });
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("warning: h.1.mlp.c_fc.weight: rank 1 differs from rank 0"), std::string::npos) << said;
  EXPECT_NE(after[1], after[0]);
}

// At stage 2 the update brings every weight to all ranks again, so only the step in between is affected.
TEST(ReplicaCheck, ReportsADifferenceThatTheUpdateRemoves) {
  ::testing::internal::CaptureStderr();
  const std::vector<std::string> errors =
      train_with_fault(checked(2, 3, config::ReplicaPolicy::stop, 1), 3, 4);
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(errors, std::vector<std::string>(3));
  EXPECT_NE(said.find("weights: rank 1 had other bits than its peers in step 4"), std::string::npos) << said;
}

TEST(ReplicaCheck, FindsNothingInEqualCopiesOfAnyLayout) {
  const Layout layouts[] = {{.data = 4},
                            {.data = 2, .tensor = 2, .zero = 1},
                            {.pipe = 2, .data = 2, .zero = 2},
                            {.data = 2, .tensor = 2, .zero = 3},
                            {.pipe = 2, .tensor = 2, .zero = 0},
                            {.data = 2, .zero = 1, .sequence = 2}};
  for (Layout l : layouts)
    for (const bool clips : {true, false}) {
      l.clips = clips;
      config::DsConfig c = config_of(l, 2);
      c.replica_check_steps = 2;
      EXPECT_NO_THROW(train_on_all(l, c, cut_gpt(true), 5)) << l.text();
    }
}

// Ranks of the tensor axis hold the same norms, and stages the same embedding.
TEST(ReplicaCheck, ComparesWeightsThatAnAxisDoesNotCutAndTiedOnes) {
  for (const auto& [l, name] :
       {std::pair{Layout{.tensor = 2}, "h.0.ln_1.weight"}, {Layout{.pipe = 2}, "wte.weight"}}) {
    config::DsConfig c = config_of(l, 2);
    c.replica_check_steps = 2;
    std::vector<std::string> errors(2);
    comm::run_ranks(2, [&](comm::Communicator& world) {
      runtime::Engine engine(c, cut_gpt(true), world, {});
      Tokens tokens(c.train_micro_batch_size_per_gpu, kTokens);
      const auto step = [&](int n) { engine.train_batch(source(tokens, c, n, 0, 1)); };
      step(0);
      if (world.rank() == 1) *static_cast<float*>(engine.resident(name).raw()) += 1;
      errors[size_t(world.rank())] = error_text(Exit::training, [&] {
        for (int n = 1; n < 5; ++n) step(n);
      });
    });
    EXPECT_EQ(errors[0], errors[1]);
    EXPECT_NE(errors[0].find(fmt::format("{}: rank 1 differs from rank 0", name)), std::string::npos)
        << l.text() << errors[0];
  }
}

TEST(ReplicaCheck, ChangesNoBitOfATraining) {
  const auto gpt = [] { return small_gpt(); };
  for (const int stage : {0, 2}) {
    const Training with = train_on(2, checked(stage, 2, config::ReplicaPolicy::stop, 1), gpt, 4),
                   without = train_on(2, checked(stage, 2, config::ReplicaPolicy::stop, 0), gpt, 4);
    EXPECT_EQ(with.weights, without.weights);
  }
}

}  // namespace
}  // namespace cleave::testing
