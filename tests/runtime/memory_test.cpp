// Memory ledger against the ZeRO paper's formula, to the byte, and against the plan.
#include <gtest/gtest.h>

#include <set>

#include "tests/runtime/small_models.h"
#include "tests/scratch.h"
#include "zero/flat_layout.h"

namespace cleave::testing {
namespace {

// Elements of all units, each padded to `shards` equal shards.
int64_t padded(const model::Model& model, int shards) {
  std::set<std::string> seen;
  int64_t sum = 0;
  auto add = [&](const std::vector<UnitSpec>& units) {
    for (const UnitSpec& u : units)
      if (seen.insert(u.name).second) sum += zero::FlatLayout(u, shards).numel();
  };
  for (const auto& layer : model.layers) add(layer->units());
  add(model.head->units());
  return sum;
}

struct Bytes {
  int64_t weights, gradients, master, states;  // per element, unsharded
};

void expect_formula(const config::DsConfig& c, DType dtype, Bytes bytes, int ranks) {
  comm::run_ranks(ranks, [&](comm::Communicator& world) {
    runtime::Engine engine(c, small_gpt(dtype), world, {});
    const int stage = c.zero.stage;
    const int64_t n = padded(engine.model(), stage == 0 ? 1 : ranks);
    const MemoryTable live = engine.memory_live();
    EXPECT_EQ(live.total(Category::weights), bytes.weights * n / (stage == 3 ? ranks : 1));
    EXPECT_EQ(live.total(Category::gradients), bytes.gradients * n / (stage >= 2 ? ranks : 1));
    EXPECT_EQ(live.total(Category::master), bytes.master * n / (stage >= 1 ? ranks : 1));
    EXPECT_EQ(live.total(Category::optimizer_state), bytes.states * n / (stage >= 1 ? ranks : 1));
    const bool offload = c.zero.offload_optimizer.device == config::OffloadDevice::cpu;
    EXPECT_EQ(live.at(MemoryKind::pinned, Category::optimizer_state),
              offload ? live.total(Category::optimizer_state) : 0);
    EXPECT_EQ(live.at(MemoryKind::pinned, Category::master), offload ? live.total(Category::master) : 0);
  });
}

TEST(Memory, FollowsTheZeroFormulaForEveryTypeStageAndNumberOfRanks) {
  for (int ranks : {1, 2, 3, 4, 5})
    for (int stage : {0, 1, 2, 3})
      for (bool offload : {false, true}) {
        config::DsConfig c = config_for(ranks);
        c.zero.stage = stage;
        if (offload) c.zero.offload_optimizer.device = config::OffloadDevice::cpu;
        expect_formula(c, DType::fp32, {4, 4, offload ? 4 : 0, 8}, ranks);
        c.precision = config::Precision::bf16;
        expect_formula(c, DType::bf16, {2, 2, 4, 8}, ranks);
        c.grad_accum_dtype = config::Precision::fp32;
        expect_formula(c, DType::bf16, {2, 4, 4, 8}, ranks);
        c.precision = config::Precision::fp16, c.fp16.enabled = true;
        expect_formula(c, DType::fp16, {2, 4, 4, 8}, ranks);
      }
}

TEST(Memory, PlannedEqualsPeakAfterTraining) {
  for (int stage : {0, 1, 2, 3})
    for (bool overlap : {false, true})
      comm::run_ranks(3, [&](comm::Communicator& world) {
        config::DsConfig c = config_for(3, 2, 2);
        c.zero.stage = stage, c.zero.overlap_comm = overlap;
        for (const auto& model : {+[] { return small_gpt(); }, +[] { return small_llama(); }}) {
          runtime::Engine engine(c, model(), world, {});
          Tokens tokens(2);
          engine.train_batch(source(tokens, c, 0, world.rank(), 3));
          engine.evaluate(source(tokens, c, 1, world.rank(), 3), 2);
          EXPECT_EQ(engine.memory_planned(), engine.memory_peak());
          EXPECT_EQ(engine.memory_planned(), engine.memory_live());
        }
      });
}

// Takes more scratch in evaluation than anything takes in training.
class DearToEvaluate final : public model::Head {
 public:
  static constexpr int64_t kBytes = 1 << 20;
  explicit DearToEvaluate(std::unique_ptr<model::Head> head) : head_(std::move(head)) {}
  std::vector<UnitSpec> units() const override { return head_->units(); }
  void run(const model::HeadArgs& a) const override {
    if (a.grads.empty()) a.scratch.take(DType::uint8, {kBytes});
    head_->run(a);
  }
  void logits(Tensor logits, Tensor x, Range rows, std::span<const Tensor> params, Arena& scratch,
              Stream& stream) const override {
    head_->logits(logits, x, rows, params, scratch, stream);
  }
  int64_t classes() const override { return head_->classes(); }

 private:
  std::unique_ptr<model::Head> head_;
};

TEST(Memory, HoldsAnEvaluationThatTakesMoreThanAStepToo) {
  const config::DsConfig c = config_for(1, 2, 1);
  const auto alone = comm::self_communicator();
  model::Model model = small_gpt();
  model.head = std::make_unique<DearToEvaluate>(std::move(model.head));
  runtime::Engine engine(c, std::move(model), *alone, {});
  Tokens tokens(2);
  engine.train_batch(source(tokens, c, 0, 0, 1));
  const runtime::Evaluation e = engine.evaluate(source(tokens, c, 1, 0, 1), 2);
  EXPECT_TRUE(std::isfinite(e.loss));
  EXPECT_FALSE(e.hits) << "which this head does not count";
  EXPECT_EQ(engine.memory_planned(), engine.memory_peak());
  EXPECT_GT(engine.memory_planned().total(Category::activations), DearToEvaluate::kBytes);
}

TEST(Memory, ThePlanRefusesBeforeAllocatingAndNamesTheLargestCategory) {
  comm::run_ranks(2, [&](comm::Communicator& world) {
    config::DsConfig c = config_for(2);
    expect_error(
        Exit::memory,
        {"does not fit", "weights", "gradients", "optimizer_state", "total",
         "largest:", "offload_optimizer.device \"cpu\""},
        [&] { runtime::Engine engine(c, small_gpt(), world, {.limits = {.device_bytes = 50'000}}); });
  });
}

TEST(Memory, StageThreeHoldsTwoLayersAtATimeWithPrefetchAndOneWithout) {
  comm::run_ranks(2, [&](comm::Communicator& world) {
    config::DsConfig c = config_for(2);
    c.zero.stage = 3;
    const auto gathered = [&] {
      runtime::Engine engine(c, small_gpt(), world, {});
      return engine.memory_live().total(Category::gathered);
    };
    const int64_t with = gathered();
    c.zero.stage3_prefetch_bucket_size = 0;
    const int64_t without = gathered();
    const int64_t block = zero::FlatLayout(small_gpt().layers[1]->units()[0], 2).numel() * 4;
    EXPECT_GE(without, block);
    EXPECT_GT(with, without);
    EXPECT_LE(with, 3 * block);
    c.zero.stage3_prefetch_bucket_size = 1000;
    for (const auto& [live, want] : {std::pair{block / 4, without}, {3 * block / 4, with}}) {
      c.zero.stage3_max_live_parameters = live;
      EXPECT_EQ(gathered(), want) << live;
    }
  });
}

}  // namespace
}  // namespace cleave::testing
