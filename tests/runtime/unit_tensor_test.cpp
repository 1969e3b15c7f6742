// Parameters that the tensor axis cuts in an externally driven engine, against an engine with whole ones.
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "kernels/elementwise.h"
#include "runtime/unit_engine.h"
#include "tests/runtime/small_models.h"
#include "tests/scratch.h"
#include "zero/gradient_shards.h"

namespace cleave::testing {
namespace {

constexpr int kCut = 2, kWays = 2;

// `w` consists of two blocks of columns. Each rank of the tensor axis has a part of the gradient of `s`.
std::vector<UnitSpec> cut_unit(std::vector<int64_t> blocks = {4, 2}) {
  return {{"layer",
           {{"w", {3, 6}, {}, true, {{Axis::tensor, {.dim = 1, .extents = std::move(blocks)}}}},
            {"b", {3}, {}, false},
            {"s", {2}, {}, false, {{Axis::tensor}}}}}};
}

double gradient_at(const std::string& name, int64_t element, int step, int data) {
  return std::sin(double(name[0]) + 0.7 * double(element) + 2.0 * step) + 0.25 * data;
}

struct CutRun {
  std::vector<double> losses, norms;
  std::map<std::string, std::vector<float>> weights;
};

class CutUnit {
 public:
  CutUnit(const config::DsConfig& c, comm::Communicator& world)
      : engine(c, "tiny", cut_unit(), world, {}), place_(engine.place()), ranks_(engine.mesh().tensor) {}

  void step(CutRun& run) {
    const int step = int(engine.step());
    engine.begin_step();
    engine.begin_pass(0, true);
    std::vector<zero::GradientSlot> slots = engine.gradients(0);
    const std::vector<ParamSpec> specs = cut_unit()[0].params;
    for (size_t p = 0; p < slots.size(); ++p) write(specs[p], slots[p], step);
    engine.give(0), engine.complete(0);
    engine.end_pass();
    const double loss = 1.0 + step + place_.data;
    const runtime::StepResult r = engine.finish_step(std::vector<double>{loss});
    run.losses.push_back(r.loss), run.norms.push_back(r.grad_norm);
  }

  runtime::UnitEngine engine;

 private:
  void write(const ParamSpec& spec, const zero::GradientSlot& slot, int step) {
    const int64_t numel = slot.tensor.numel();
    EXPECT_EQ(numel, spec.name == "w" ? spec.numel() / ranks_ : spec.numel());
    std::vector<float> values(static_cast<size_t>(numel), 0.0f);
    for (int64_t i = 0; i < numel; ++i) {
      const int64_t each = 6 / ranks_, column = i % each, block = 4 / ranks_;
      const int64_t whole =
          column < block ? column + place_.tensor * block : 4 + column - block + place_.tensor * (2 / ranks_);
      const double g = gradient_at(spec.name, spec.name == "w" ? i / each * 6 + whole : i, step, place_.data);
      const double part = spec.name == "s" && ranks_ > 1 ? (place_.tensor == 0 ? 0.25 : 0.75) : 1;
      values[size_t(i)] = float(g * part * engine.scale());
    }
    const Tensor from(values.data(), DType::fp32, {numel}, MemoryKind::device);
    kernels::launch(kernels::Cast{.y = slot.tensor, .x = from}, engine.stream());
    engine.stream().synchronize();
    *slot.written = true;
  }

  const MeshPlace place_;
  const int ranks_;
};

config::DsConfig cut_config(int stage, int tensor) {
  config::DsConfig c = config_for(kWays, 1, 1);
  c.zero.stage = stage, c.gradient_clipping = 0.5, c.tensor_parallel.autotp_size = tensor;
  return c;
}

CutRun train_cut(int stage, int tensor, const std::string& folder) {
  CutRun run;
  comm::run_ranks(kWays * tensor, [&](comm::Communicator& world) {
    CutUnit driven(cut_config(stage, tensor), world);
    CutRun mine;
    for (int step = 0; step < 2; ++step) driven.step(mine);
    driven.engine.save_checkpoint(folder, "two");
    for (int step = 2; step < 4; ++step) driven.step(mine);
    for (const char* name : {"w", "b", "s"}) mine.weights[name] = driven.engine.parameter(name);
    EXPECT_EQ(driven.engine.memory_live(), driven.engine.memory_planned());
    if (world.rank() == 0) run = std::move(mine);
  });
  return run;
}

void expect_same_run(const CutRun& got, const CutRun& want, size_t first) {
  for (size_t i = 0; i < got.norms.size(); ++i) {
    EXPECT_NEAR(got.losses[i], want.losses[first + i], 1e-12);
    EXPECT_NEAR(got.norms[i], want.norms[first + i], 1e-6);
  }
  for (const auto& [name, values] : want.weights)
    for (size_t i = 0; i < values.size(); ++i)
      EXPECT_NEAR(got.weights.at(name)[i], values[i], 1e-6) << name << " " << i;
}

TEST(UnitTensor, PartsTrainAsWholeParametersAtEveryStage) {
  const Scratch folder;
  for (const int stage : {0, 1, 2, 3}) {
    const CutRun whole = train_cut(stage, 1, folder.path("whole"));
    EXPECT_EQ(whole.losses, (std::vector<double>{1.5, 2.5, 3.5, 4.5}));
    expect_same_run(train_cut(stage, kCut, folder.path("cut")), whole, 0);
  }
}

TEST(UnitTensor, CheckpointsResumeWithAnotherSize) {
  const Scratch folder;
  for (const int saved : {1, kCut}) {
    const CutRun want = train_cut(2, saved, folder.path("a"));
    const int tensor = saved == 1 ? kCut : 1;
    comm::run_ranks(kWays * tensor, [&](comm::Communicator& world) {
      CutUnit driven(cut_config(3, tensor), world);
      driven.engine.load_checkpoint(folder.path("a"));
      CutRun mine;
      for (int step = 2; step < 4; ++step) driven.step(mine);
      for (const char* name : {"w", "b", "s"}) mine.weights[name] = driven.engine.parameter(name);
      expect_same_run(mine, want, 2);
    });
  }
}

TEST(UnitTensor, GivesEveryRankTheValueOfTheFirst) {
  comm::run_ranks(kWays * kCut, [&](comm::Communicator& world) {
    CutUnit driven(cut_config(1, kCut), world);
    float value = 1 + float(world.rank());
    driven.engine.take_first(0, Tensor(&value, DType::fp32, {1}, MemoryKind::host));
    EXPECT_EQ(value, 1);
  });
}

TEST(UnitTensor, RejectsWhatItCannotCut) {
  comm::run_ranks(kCut, [&](comm::Communicator& world) {
    const auto make = [&](const config::DsConfig& c, std::vector<int64_t> blocks) {
      runtime::UnitEngine(c, "tiny", cut_unit(std::move(blocks)), world, {});
    };
    config::DsConfig c = config_for(1);
    c.tensor_parallel.autotp_size = kCut;
    expect_error(Exit::usage, {"w cannot be divided", "got 2 ranks for 3 elements in dim 1"}, [&] {
      make(c, {3, 3});
    });
    expect_error(Exit::internal, {"blocks of 5 elements"}, [&] { make(c, {4, 1}); });
    c.tensor_parallel.autotp_size = 1, c.sequence_parallel_size = kCut;
    expect_error(Exit::usage, {"sequence_parallel_size: not supported"}, [&] { make(c, {4, 2}); });
  });
  comm::run_ranks(2 * kCut, [&](comm::Communicator& world) {
    config::DsConfig c = config_for(1);
    c.tensor_parallel.autotp_size = kCut, c.pipeline.stages = 2;
    expect_error(Exit::usage, {"cannot be combined with a pipeline", "got 2 and 2 stages"},
                 [&] { runtime::UnitEngine(c, "tiny", cut_unit(), world, {}); });
  });
}

}  // namespace
}  // namespace cleave::testing
