// Updates of an externally driven engine against Adam in double precision: paused parameters, visible
// gradients, positions, and tensors of other types.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "kernels/elementwise.h"
#include "runtime/unit_engine.h"
#include "tests/runtime/small_models.h"
#include "tests/scratch.h"
#include "zero/gradient_shards.h"

namespace cleave::testing {
namespace {

using Names = std::vector<std::string>;

const std::vector<UnitSpec>& two_units() {
  static const std::vector<UnitSpec> units = {
      {"a", {{"a.weight", {5, 3}, {}, true}, {"a.bias", {3}, {}, false}}},
      {"b", {{"b.weight", {4}, {}, true}}}};
  return units;
}

// Gradient of one rank; the average over the ranks is that of rank (ranks - 1) / 2.
double gradient_of(const std::string& name, int64_t element, int step, double rank) {
  return std::sin(double(name.size()) * 3 + double(element) + 2.0 * step) + 0.25 * rank;
}

class Driven {
 public:
  Driven(const config::DsConfig& c, comm::Communicator& world, std::vector<UnitSpec> units = two_units(),
         const runtime::UnitOptions& options = {})
      : units_(std::move(units)), engine(c, "tiny", units_, world, options), rank_(world.rank()) {}

  // Gives the gradients of all parameters except those in `without`.
  void passes(int step, const Names& without = {}) {
    engine.begin_step();
    engine.begin_pass(0, true);
    for (int u = 0; u < int(units_.size()); ++u) {
      std::vector<zero::GradientSlot> slots = engine.gradients(u);
      for (size_t p = 0; p < slots.size(); ++p) {
        const ParamSpec& param = units_[size_t(u)].params[p];
        if (std::count(without.begin(), without.end(), param.name)) continue;
        std::vector<float> values(size_t(param.numel()));
        for (size_t i = 0; i < values.size(); ++i)
          values[i] = float(gradient_of(param.name, int64_t(i), step, rank_) * engine.scale());
        const Tensor from(values.data(), DType::fp32, {param.numel()}, MemoryKind::device);
        kernels::launch(kernels::Cast{.y = slots[p].tensor, .x = from}, engine.stream());
        engine.stream().synchronize();
        *slots[p].written = true;
      }
      engine.give(u), engine.complete(u);
    }
    engine.end_pass();
  }

 private:
  std::vector<UnitSpec> units_;

 public:
  runtime::UnitEngine engine;

 private:
  int rank_;
};

// AdamW in double precision with a count of updates per parameter.
class Reference {
 public:
  Reference(const config::OptimizerConfig& optimizer, int ranks) : o_(optimizer), ranks_(ranks) {
    for (const UnitSpec& u : two_units())
      for (const ParamSpec& p : u.params)
        all_[p.name] = {std::vector<std::array<double, 3>>(size_t(p.numel())), p.decay, 0};
  }
  void step(int step, const Names& paused, double factor = 1) {
    for (auto& [name, p] : all_) {
      if (std::count(paused.begin(), paused.end(), name)) continue;
      ++p.updates;
      for (size_t i = 0; i < p.values.size(); ++i) {
        auto& [x, m, v] = p.values[i];
        const double g = factor * gradient_of(name, int64_t(i), step, (ranks_ - 1) / 2.0);
        m = o_.beta1 * m + (1 - o_.beta1) * g, v = o_.beta2 * v + (1 - o_.beta2) * g * g;
        const double c1 = 1 - std::pow(o_.beta1, p.updates), c2 = 1 - std::pow(o_.beta2, p.updates);
        x -= o_.lr * ((p.decay ? o_.weight_decay * x : 0) + m / c1 / (std::sqrt(v / c2) + o_.eps));
      }
    }
  }
  void expect(runtime::UnitEngine& engine, const std::string& where) const {
    for (const auto& [name, p] : all_) {
      const std::vector<float> got = engine.parameter(name);
      for (size_t i = 0; i < got.size(); ++i)
        ASSERT_NEAR(got[i], p.values[i][0], 2e-6) << where << ": " << name << "[" << i << "]";
    }
  }

 private:
  struct Parameter {
    std::vector<std::array<double, 3>> values;  // value and moments
    bool decay = false;
    int updates = 0;
  };
  config::OptimizerConfig o_;
  int ranks_;
  std::map<std::string, Parameter> all_;
};

config::DsConfig config_of(int ranks, int stage) {
  config::DsConfig c = config_for(ranks);
  c.zero.stage = stage, c.gradient_clipping = 0, c.optimizer.lr = 0.01;
  return c;
}

class UnitUpdates : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, UnitUpdates, ::testing::Values(1, 2, 3));

TEST_P(UnitUpdates, LeaveOutPausedParametersAndTheirCountsAlsoAfterALoad) {
  const int ranks = GetParam();
  const std::vector<Names> paused = {{},         {"a.weight"}, {"a.weight", "b.weight"},
                                     {"a.bias"}, {},           {"b.weight"}};
  for (const int stage : {0, 1, 2, 3})
    for (const bool offload : {false, true}) {
      const Scratch folder;
      config::DsConfig c = config_of(ranks, stage);
      if (offload && stage > 0) c.zero.offload_optimizer.device = config::OffloadDevice::cpu;
      comm::run_ranks(ranks, [&](comm::Communicator& world) {
        const std::string where = fmt::format("stage {} offload {}", stage, offload);
        Driven first(c, world);
        Reference want(c.optimizer, ranks);
        const auto train = [&](Driven& driven, int step) {
          driven.engine.pause(paused[size_t(step)]);
          driven.passes(step, paused[size_t(step)]);
          driven.engine.finish_step(std::vector<double>{0.5});
          want.step(step, paused[size_t(step)]);
        };
        for (int step = 0; step < 4; ++step) train(first, step);
        want.expect(first.engine, where);
        first.engine.save_checkpoint(folder.path("saved"), "four");
        Driven second(config_of(ranks, 3 - stage), world);
        second.engine.load_checkpoint(folder.path("saved"));
        for (int step = 4; step < 6; ++step) train(second, step);
        want.expect(second.engine, where + ", resumed");
      });
    }
}

TEST_P(UnitUpdates, ContinueInAnotherEngineAtThePositionOfTheFirst) {
  const int ranks = GetParam();
  comm::run_ranks(ranks, [&](comm::Communicator& world) {
    const config::DsConfig c = config_of(ranks, 2);
    Driven first(c, world), second(c, world);
    Reference want(c.optimizer, ranks);
    first.engine.pause(Names{"a.bias"});
    for (int step = 0; step < 3; ++step) {
      first.passes(step, {"a.bias"});
      first.engine.finish_step(std::vector<double>{0.5});
      want.step(step, {"a.bias"});
    }
    const std::string position = first.engine.position();
    const Names kinds = first.engine.kinds();
    for (const UnitSpec& u : two_units())
      for (const ParamSpec& p : u.params)
        for (int kind = 0; kind < int(kinds.size()); ++kind) {
          std::vector<float> whole = first.engine.parameter(p.name, kind);
          second.engine.write_parameter(p.name, whole, kind);
        }
    second.engine.publish_parameters();
    second.engine.set_position(position, {});
    EXPECT_EQ(second.engine.step(), 3);
    second.passes(3);
    second.engine.finish_step(std::vector<double>{0.5});
    want.step(3, {});
    want.expect(second.engine, "the second engine");
  });
}

TEST_P(UnitUpdates, HaveTheSameBitsAfterTheirStatesWereInHostMemory) {
  const int ranks = GetParam();
  for (const int stage : {0, 2, 3})
    for (const bool on_host : {false, true})
      comm::run_ranks(ranks, [&](comm::Communicator& world) {
        SCOPED_TRACE(fmt::format("stage {}, states offloaded {}", stage, on_host));
        config::DsConfig c = config_of(ranks, stage);
        c.precision = config::Precision::bf16;
        if (on_host && stage > 0) c.zero.offload_optimizer.device = config::OffloadDevice::cpu;
        Driven moved(c, world), stays(c, world);
        const MemoryTable at_home = moved.engine.memory_live();
        const auto bytes = [&](MemoryKind kind, Category category) {
          return moved.engine.memory_live().at(kind, category);
        };
        const auto expect_equal = [&] {
          for (const UnitSpec& u : two_units())
            for (const ParamSpec& p : u.params)
              for (int kind = 0; kind < int(moved.engine.kinds().size()); ++kind)
                EXPECT_EQ(moved.engine.parameter(p.name, kind), stays.engine.parameter(p.name, kind))
                    << p.name;
        };
        for (int step = 0; step < 4; ++step) {
          for (Driven* driven : {&moved, &stays}) {
            driven->passes(step);
            driven->engine.finish_step(std::vector<double>{0.5});
          }
          const bool masters = step != 1, states = step != 2, pinned = step != 3;
          moved.engine.offload_states(masters, states, pinned);
          const MemoryKind away = pinned ? MemoryKind::pinned : MemoryKind::host;
          for (const auto& [category, moves] :
               {std::pair(Category::master, masters), std::pair(Category::optimizer_state, states)}) {
            const int64_t device = at_home.at(MemoryKind::device, category);
            EXPECT_EQ(bytes(MemoryKind::device, category), moves ? 0 : device);
            EXPECT_EQ(bytes(away, category) - at_home.at(away, category), moves ? device : 0);
          }
          expect_equal();
          if (step != 2) continue;
          moved.engine.reload_states();
          EXPECT_EQ(moved.engine.memory_live(), at_home);
        }
        moved.engine.publish_parameters();
        EXPECT_EQ(moved.engine.memory_live(), at_home);
        moved.passes(4);
        EXPECT_THROW(moved.engine.offload_states(true, true, true), Error);
        moved.engine.finish_step(std::vector<double>{0.5});
      });
}

TEST_P(UnitUpdates, UseVisibleGradientsWithTheirChanges) {
  const int ranks = GetParam();
  for (const int stage : {0, 1})
    for (const bool clips : {false, true}) {
      config::DsConfig c = config_of(ranks, stage);
      c.gradient_clipping = clips ? 1e6 : 0;
      comm::run_ranks(ranks, [&](comm::Communicator& world) {
        Driven driven(c, world);
        Reference want(c.optimizer, ranks);
        driven.engine.wait_with_updates(true);
        for (int step = 0; step < 3; ++step) {
          driven.passes(step);
          driven.engine.show_gradients();
          double squares = 0;
          for (int u = 0; u < 2; ++u) {
            const std::vector<Tensor> shown = driven.engine.shown_gradients(u);
            for (size_t p = 0; p < shown.size(); ++p) {
              const ParamSpec& param = two_units()[size_t(u)].params[p];
              for (int64_t i = 0; i < param.numel(); ++i) {
                float& g = shown[p].as<float>()[i];
                EXPECT_NEAR(g, gradient_of(param.name, i, step, (ranks - 1) / 2.0), 1e-6);
                g *= 0.5f;
                squares += double(g) * g;
              }
            }
          }
          const runtime::StepResult result = driven.engine.finish_step(std::vector<double>{0.5});
          EXPECT_NEAR(result.grad_norm, std::sqrt(squares), 1e-6);
          want.step(step, {}, 0.5);
        }
        want.expect(driven.engine, fmt::format("stage {} clipping {}", stage, clips));
      });
    }
}

TEST(UnitUpdates, RefuseWhatCannotBeShownAndDifferentPauses) {
  const auto alone = comm::self_communicator();
  for (const bool exact : {false, true}) {
    config::DsConfig c = config_of(1, exact ? 0 : 2);
    c.exact_sums = exact;
    Driven driven(c, *alone);
    driven.engine.wait_with_updates(true);
    driven.passes(0);
    expect_error(Exit::usage,
                 {exact ? "not summed as floating-point" : "not whole on a rank at ZeRO stage 2"},
                 [&] { driven.engine.show_gradients(); });
  }
  Driven driven(config_of(1, 0), *alone);
  expect_error(Exit::usage, {"has no parameter c"}, [&] { driven.engine.pause(Names{"c"}); });
  driven.passes(0);
  expect_error(Exit::internal, {"updates do not wait"}, [&] { driven.engine.show_gradients(); });
  comm::run_ranks(2, [&](comm::Communicator& world) {
    Driven one(config_of(2, 1), world);
    one.engine.pause(world.rank() == 0 ? Names{"b.weight"} : Names{});
    one.passes(0);
    expect_error(Exit::usage,
                 {"step 1", "differ between ranks", world.rank() == 0 ? "frozen: b.weight" : "frozen: none"},
                 [&] { one.engine.finish_step(std::vector<double>{0.5}); });
  });
}

TEST(UnitUpdates, KeepWholeUnitsWholeAtStage3) {
  comm::run_ranks(2, [&](comm::Communicator& world) {
    std::vector<UnitSpec> units = two_units();
    units[1].whole = true;
    const config::DsConfig c = config_of(2, 3);
    Driven driven(c, world, units);
    EXPECT_TRUE(driven.engine.gathers(0));
    EXPECT_FALSE(driven.engine.gathers(1));
    Reference want(c.optimizer, 2);
    for (int step = 0; step < 2; ++step) {
      driven.passes(step);
      driven.engine.finish_step(std::vector<double>{0.5});
      want.step(step, {});
    }
    want.expect(driven.engine, "a whole unit");
    EXPECT_EQ(driven.engine.memory_live(), driven.engine.memory_planned());
  });
}

// Values of other types beside units that train: every rank has the bits of every word, also patterns that
// are not numbers, and checkpoints of another stage, precision or number of ranks have them.
TEST(UnitUpdates, ShardBits) {
  const Scratch folder;
  const auto units = [] {
    std::vector<UnitSpec> all = two_units();
    const auto add = [&](size_t at, const char* name, std::vector<ParamSpec> params) {
      all.insert(all.begin() + std::ptrdiff_t(at),
                 UnitSpec{.name = name, .params = std::move(params), .frozen = true, .word = 1});
    };
    add(1, "codes", {{"flags", {1}, {}}, {"codes", {1001}, {}}});  // a multiple of neither 2 nor 3 shards
    add(all.size(), "last", {{"tables", {7}, {}}});
    return all;
  };
  const auto bits_of = [](const std::string& name, int64_t words) {
    std::vector<int64_t> bits;
    for (int64_t w = 0; w < words; ++w)
      bits.push_back(int64_t(0x7fa1'ffb2'7f83'ff94ULL) - (w << 40) * int64_t(name.size()) + w);
    return bits;
  };
  const std::map<std::string, int64_t> words = {{"flags", 1}, {"codes", 1001}, {"tables", 7}};
  const auto expect = [&](Driven& driven, const std::string& what) {
    driven.engine.begin_pass(0, false);
    for (int u = 0; u < int(units().size()); ++u) {
      if (units()[size_t(u)].word == 0) continue;
      const std::vector<Tensor> whole = driven.engine.acquire(u);
      for (size_t p = 0; p < whole.size(); ++p) {
        const std::string name = units()[size_t(u)].params[p].name;
        const std::vector<int64_t> want = bits_of(name, words.at(name));
        ASSERT_EQ(whole[p].bytes(), int64_t(want.size()) * 8) << what;
        EXPECT_EQ(std::memcmp(whole[p].raw(), want.data(), want.size() * 8), 0) << what << ": " << name;
        EXPECT_EQ(uintptr_t(whole[p].raw()) % 8, 0u) << what << ": " << name;
      }
      driven.engine.release(u);
    }
    driven.engine.end_pass();
    for (const auto& [name, count] : words)
      EXPECT_EQ(driven.engine.bits(name), bits_of(name, count)) << what << ": " << name;
    EXPECT_EQ(driven.engine.memory_live(), driven.engine.memory_planned()) << what;
  };
  for (const int ranks : {2, 3})
    comm::run_ranks(ranks, [&](comm::Communicator& world) {
      for (const int stage : {0, 1, 3})
        for (const config::Precision precision : {config::Precision::fp32, config::Precision::bf16}) {
          const std::string what =
              fmt::format("{} ranks, stage {}, precision {}", ranks, stage, int(precision));
          config::DsConfig c = config_of(ranks, stage);
          c.precision = precision;
          Driven driven(c, world, units());
          EXPECT_EQ(driven.engine.gathers(1), stage == 3) << what;
          if (ranks == 3) {  // those of the last engine on two ranks
            driven.engine.load_checkpoint(folder.path("saved"));
            expect(driven, what + ", resumed");
            continue;
          }
          for (const UnitSpec& unit : units())
            for (const ParamSpec& p : unit.params)
              if (unit.word > 0) {
                std::vector<int64_t> bits = bits_of(p.name, words.at(p.name));
                driven.engine.write_bits(p.name, bits);
              }
          driven.engine.publish_parameters();
          expect(driven, what);
          driven.engine.save_checkpoint(folder.path("saved"), "two");
        }
    });
}

}  // namespace
}  // namespace cleave::testing
