// Stages with external layers: their declared units are merged, summed and saved as the whole model.
#include <cmath>

#include "runtime/unit_engine.h"
#include "tests/runtime/compare.h"
#include "tests/scratch.h"
#include "zero/gradient_shards.h"

namespace cleave::testing {
namespace {

UnitSpec unit(const std::string& name, std::vector<int64_t> shape) {
  return {name, {{name + ".weight", std::move(shape), {}, false}}};
}

config::DsConfig staged(int stages, int zero) {
  config::DsConfig c = config_for(1, 1, 2);
  c.pipeline.stages = stages;
  c.zero.stage = zero;
  return c;
}

// Three layers on up to two stages; the first and the last share a unit.
struct Stages {
  Stages(comm::Communicator& world, int stages, int zero, const runtime::UnitOptions& options = {})
      : last(world.rank() >= world.size() / stages),
        units(stages == 1
                  ? std::vector<UnitSpec>{unit("shared", {2}), unit("first", {3}), unit("second", {1})}
              : last ? std::vector<UnitSpec>{unit("second", {1}), unit("shared", {2})}
                     : std::vector<UnitSpec>{unit("shared", {2}), unit("first", {3})}),
        engine(staged(stages, zero), "layers", units, world, options) {}

  // Two micro-batches with this gradient in every element of a unit.
  runtime::StepResult step(const std::function<float(const std::string&)>& gradient,
                           std::span<const optim::Rates> rates = {}) {
    engine.begin_step();
    for (int micro = 0; micro < 2; ++micro) {
      engine.begin_pass(0, micro == 1);
      for (int u = 0; u < int(units.size()); ++u) {
        for (const zero::GradientSlot& slot : engine.gradients(u)) {
          const bool adds = std::exchange(*slot.written, true);
          for (int64_t i = 0; i < slot.tensor.numel(); ++i)
            slot.tensor.as<float>()[i] = (adds ? slot.tensor.as<float>()[i] : 0) +
                                         float(gradient(units[size_t(u)].name) * engine.scale());
        }
        engine.give(u), engine.complete(u);
      }
      engine.end_pass();
    }
    for (const char* name : {"shared", "first", "second"})
      gradients[name] = engine.gradient(name + std::string(".weight"));
    const double losses[] = {1, 2};
    return engine.finish_step({losses, last || engine.mesh().pipe == 1 ? 2u : 0u}, rates);
  }

  bool last;
  std::vector<UnitSpec> units;
  runtime::UnitEngine engine;
  std::map<std::string, std::vector<float>> gradients;
};

TEST(UnitPipeline, SumsSharedUnitsAndCountsThemOnceAtEveryZeroStage) {
  for (const int zero : {0, 1, 2, 3})
    comm::run_ranks(4, [&](comm::Communicator& world) {
      Stages s(world, 2, zero);
      const int place = s.engine.place().data;
      const runtime::StepResult result = s.step([&](const std::string& name) {
        if (name == "shared") return s.last ? 10.0f : float(1 + place);
        return name == "first" ? 4.0f : 5.0f;
      });
      EXPECT_EQ(s.gradients["shared"], std::vector<float>(2, 11.5f)) << "10 and the mean of 1 and 2";
      EXPECT_EQ(s.gradients["first"], std::vector<float>(3, 4));
      EXPECT_EQ(s.gradients["second"], std::vector<float>(1, 5));
      EXPECT_NEAR(result.grad_norm, std::sqrt(2 * 11.5 * 11.5 + 3 * 16 + 25), 1e-5) << "ZeRO " << zero;
      EXPECT_DOUBLE_EQ(result.loss, 1.5) << "of the last stage, on every rank";
      EXPECT_EQ(s.engine.memory_live(), s.engine.memory_planned());
      EXPECT_EQ(s.engine.params(), 6);
    });
}

TEST(UnitPipeline, RatesMayDifferBetweenStagesAndNotBetweenRanksOfAStage) {
  for (const int zero : {0, 2})
    comm::run_ranks(4, [&](comm::Communicator& world) {
      runtime::UnitOptions options;
      options.engine.rates_given = true;
      Stages s(world, 2, zero, options);
      const auto constant = [](const std::string&) { return 2.0f; };
      optim::Rates of_stage, of_rank;
      of_stage.lr = s.last ? 0.5 : 0.1, of_rank.lr = world.rank() == 1 ? 0.2 : 0.1;
      EXPECT_EQ(s.step(constant, {&of_stage, 1}).step, 1);
      expect_error(Exit::usage, {"step 2", "differ between ranks", "set equal values on all ranks"}, [&] {
        s.step(constant, {&of_rank, 1});
      });
    });
}

TEST(UnitPipeline, CheckpointsLoadWithAnotherNumberOfStages) {
  const Scratch folder;
  const auto constant = [](const std::string&) { return 2.0f; };
  std::vector<float> shared;
  comm::run_ranks(2, [&](comm::Communicator& world) {
    Stages s(world, 2, 1);
    s.step(constant);
    s.engine.save_checkpoint(folder.path("a"), "one");
    const std::vector<float> value = s.engine.parameter("shared.weight", 1);
    if (world.rank() == 0) shared = value;
  });
  ASSERT_EQ(shared.size(), 2u);
  EXPECT_NE(shared[0], 0) << "a moment";
  comm::run_ranks(3, [&](comm::Communicator& world) {
    Stages s(world, 1, 3);
    s.engine.load_checkpoint(folder.path("a"));
    EXPECT_EQ(s.engine.parameter("shared.weight", 1), shared);
    EXPECT_EQ(s.step(constant).step, 2);
  });
}

TEST(UnitPipeline, HandsOutTheScheduleAndCarriesWhatItSays) {
  comm::run_ranks(2, [&](comm::Communicator& world) {
    Stages s(world, 2, 0);
    const pipeline::InstructionList list = s.engine.begin_walk(true, 3, false);
    EXPECT_EQ(list, pipeline::make_schedule("1f1b", {2, 3, 1}).ranks[size_t(world.rank())]);
    float value = 7;
    const Tensor message(&value, DType::fp32, {1}, MemoryKind::host);
    if (!s.last) {
      s.engine.send_shape(0, "one float"), s.engine.send(runtime::Link::activation, message);
      s.engine.send_shape(0, "one float"), s.engine.receive(runtime::Link::gradient, message);
      EXPECT_EQ(value, 8);
      expect_error(Exit::usage, {"two floats", "earlier ones of the step", "one float", "dynamic_shape"},
                   [&] { s.engine.send_shape(0, "two floats"); });
    } else {
      value = 0;
      EXPECT_EQ(s.engine.receive_shape(0), "one float");
      s.engine.receive(runtime::Link::activation, message);
      EXPECT_EQ(value, 7);
      EXPECT_EQ(s.engine.receive_shape(0), "one float") << "said once in a walk";
      value = 8;
      s.engine.send(runtime::Link::gradient, message);
    }
    s.engine.begin_walk(false, 1, true);
    for (const char* shape : {"a", "b"})
      if (s.last)
        EXPECT_EQ(s.engine.receive_shape(0), shape);
      else
        s.engine.send_shape(0, shape);
  });
}

TEST(UnitPipeline, RefusesStagesThatDoNotFitTogether) {
  const auto make = [](comm::Communicator& world, const config::DsConfig& c, std::vector<UnitSpec> units) {
    return runtime::UnitEngine(c, "layers", units, world, {});
  };
  comm::run_ranks(2, [&](comm::Communicator& world) {
    expect_error(
        Exit::usage,
        {"found by rank 1", "on the first rank with the same layers; build the same model on every rank",
         "[\"a.weight\",[4]"},
        [&] { make(world, staged(1, 0), {unit("a", {3 + world.rank()})}); });
    expect_error(Exit::usage, {"pipeline: stages 0 and 1", "share a", "); make them equal"},
                 [&] { make(world, staged(2, 0), {unit("a", {3 + world.rank()})}); });
    config::DsConfig split = staged(2, 0);
    split.pipeline.schedule = "zb-h1";
    expect_error(Exit::usage, {"zb-h1: splits backwards", "use 1f1b"},
                 [&] { make(world, split, {unit("a", {3})}); });
  });
}

}  // namespace
}  // namespace cleave::testing
