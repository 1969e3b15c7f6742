// FP8 products of blocks (cleave.fp8): equal bits at every stage and home, close to bf16 in every layout,
// with state that records magnitudes and is in every checkpoint.
#include <gtest/gtest.h>

#include "model/presets.h"
#include "tests/runtime/cut_models.h"
#include "tests/scratch.h"

namespace cleave::testing {
namespace {

constexpr int64_t kHistory = 4;
constexpr int kBlocks = 2, kProducts = 4;

runtime::ModelFactory wide_gpt(int64_t width = 32) {
  return [width](const model::Axes& axes) {
    return model::make_model(
        model::kGpt2, {.vocab = kVocab, .positions = 11, .width = width, .layers = kBlocks, .heads = 2},
        DType::bf16, kTokens, "wide", axes);
  };
}

// With four tensor-parallel ranks, ranks share key/value heads.
runtime::ModelFactory wide_llama() {
  return [](const model::Axes& axes) {
    return model::make_model(model::kLlama,
                             {.vocab = kVocab,
                              .positions = 11,
                              .width = 32,
                              .layers = kBlocks,
                              .heads = 4,
                              .kv_heads = 2,
                              .head_dim = 16,
                              .mlp_width = 64},
                             DType::bf16, kTokens, "wide", axes);
  };
}

config::DsConfig fp8_config(const Layout& l, config::Fp8Scaling scaling, int accumulation = 0) {
  config::DsConfig c = config_of(l, accumulation ? accumulation : 4 / l.data);
  c.precision = config::Precision::bf16, c.bf16_enabled = true;
  c.fp8 = {.scaling = scaling, .history = kHistory};
  return c;
}

constexpr config::Fp8Scaling kScalings[] = {config::Fp8Scaling::delayed, config::Fp8Scaling::row};

TEST(Fp8Training, HasTheSameBitsAtEveryStageAndHomeAndWithRecomputation) {
  for (const config::Fp8Scaling scaling : kScalings) {
    // One micro-batch per step: several would be added in bf16 before or after the sum over ranks.
    const Training want = train_on_all({.data = 2}, fp8_config({.data = 2}, scaling, 1), wide_gpt(), 3);
    for (const Layout& l :
         {Layout{.data = 2, .zero = 1}, {.data = 2, .zero = 2, .offload = true}, {.data = 2, .zero = 3}})
      expect_same_bits(train_on_all(l, fp8_config(l, scaling, 1), wide_gpt(), 3), want, l.text());
    for (const bool lean : {false, true}) {
      config::DsConfig c = fp8_config({.data = 2, .zero = 3}, scaling, 1);
      c.checkpointing.lean = lean, c.checkpointing.interval = lean ? 0 : 1;
      expect_same_bits(train_on_all({.data = 2, .zero = 3}, c, wide_gpt(), 3), want, lean ? "lean" : "again");
    }
  }
}

std::vector<Layout> other_layouts() {
  return {{.data = 4, .zero = 3},
          {.pipe = 2, .zero = 1},
          {.pipe = 2, .zero = 1, .schedule = "zb-h1"},
          {.tensor = 2},
          {.tensor = 2, .zero = 1, .cut_rows = false},
          {.data = 2, .tensor = 2, .zero = 3},
          {.pipe = 2, .tensor = 2, .zero = 1, .schedule = "zb-h1"},
          {.zero = 1, .sequence = 2}};
}

// Rounding to eight bits has errors up to 1/16, and occasionally falls to the other side when a sum is cut:
// the remaining difference is a few of these among all terms.
TEST(Fp8Training, IsTheSameToRoundingInOtherLayouts) {
  for (const config::Fp8Scaling scaling : kScalings)
    for (const auto& make : {wide_gpt(), wide_llama()}) {
      const Training want = train_on_all({}, fp8_config({}, scaling), make, 3);
      for (const Layout& l : other_layouts()) {
        const Training got = train_on_all(l, fp8_config(l, scaling), make, 3);
        for (size_t s = 0; s < want.steps.size(); ++s) {
          EXPECT_NEAR(got.steps[s].loss, want.steps[s].loss, 2e-3 * want.steps[s].loss) << l.text();
          EXPECT_NEAR(got.steps[s].grad_norm, want.steps[s].grad_norm, 0.02 * want.steps[s].grad_norm)
              << l.text();
        }
      }
    }
}

// Returns the weights after one step of plain gradient descent: they moved by the gradient.
Weights gradients(config::DsConfig c) {
  c.optimizer = {.type = config::OptimizerType::sgd, .lr = 1};
  c.scheduler.type = config::SchedulerType::constant;
  c.gradient_clipping = 0;
  const Weights before = train_on_all({}, c, wide_gpt(), 0).weights;
  Weights moved = train_on_all({}, c, wide_gpt(), 1).weights;
  for (auto& [name, values] : moved)
    for (size_t i = 0; i < values.size(); ++i) values[i] -= before.at(name)[i];
  return moved;
}

// Rounding errors are up to 1/16 for E4M3 and 1/8 for E5M2, uniformly distributed, so a third and less of
// that.
TEST(Fp8Training, HasGradientsThatDifferFromThoseOfBf16ByItsRounding) {
  const Weights want = gradients(fp8_config({}, config::Fp8Scaling::off));
  for (const config::Fp8Scaling scaling : kScalings) {
    const Weights got = gradients(fp8_config({}, scaling));
    for (const auto& [name, values] : want) {
      if (!name.ends_with(".weight") || name.find(".ln_") != std::string::npos || name.find("h.") != 0)
        continue;
      const double distance = relative_distance(got.at(name), values);
      EXPECT_LT(distance, 0.12) << name_of(scaling) << " " << name;
      EXPECT_GT(distance, 0.002) << name_of(scaling) << " " << name << ": its product was in FP8";
    }
  }
}

// Repeats the same few samples, which are memorized; losses on real text are in benchmarks/results.
TEST(Fp8Training, TrainsLikeBf16) {
  const auto losses = [](config::Fp8Scaling scaling) {
    const auto alone = comm::self_communicator();
    const config::DsConfig c = fp8_config({}, scaling, 1);
    runtime::Engine engine(c, wide_llama(), *alone, {});
    Tokens tokens(c.train_micro_batch_size_per_gpu, kTokens);
    std::vector<double> all;
    for (int step = 0; step < 80; ++step)
      all.push_back(engine.train_batch(source(tokens, c, step % 4, 0, 1)).loss);
    return all;
  };
  const std::vector<double> want = losses(config::Fp8Scaling::off);
  ASSERT_LT(want.back(), 0.6 * want.front());
  for (const config::Fp8Scaling scaling : kScalings) {
    const std::vector<double> got = losses(scaling);
    for (size_t s = 0; s < want.size(); ++s)
      EXPECT_NEAR(got[s], want[s], 0.05 * want.front()) << name_of(scaling) << " " << s;
  }
}

struct Seen {
  std::vector<std::vector<float>> states;  // by step and block
  Training run;
};

Seen watch_states(const Layout& l, const runtime::ModelFactory& make, int steps, int accumulation = 0) {
  Seen out;
  comm::run_ranks(l.ranks(), [&](comm::Communicator& world) {
    const config::DsConfig c = fp8_config(l, config::Fp8Scaling::delayed, accumulation);
    runtime::Engine engine(c, make, world, {});
    Tokens tokens(c.train_micro_batch_size_per_gpu, kTokens);
    const int place = engine.mesh().place(world.rank()).data;
    Seen mine;
    for (int step = 0; step < steps; ++step) {
      engine.train_batch(source(tokens, c, step, place, engine.mesh().data));
      for (int b = 0; b < kBlocks; ++b) mine.states.push_back(engine.layer_state(fmt::format("h.{}.fp8", b)));
    }
    mine.run.weights = weights_of(engine);
    if (world.rank() == 0) out = std::move(mine);
  });
  return out;
}

// One row each for inputs, weight and gradients of a block's four products, newest step first.
TEST(Fp8Training, RemembersTheLargestMagnitudesOfTheLastStepsInEveryLayout) {
  const Weights start = train_on_all({}, fp8_config({}, config::Fp8Scaling::off), wide_gpt(), 0).weights;
  const Seen alone = watch_states({}, wide_gpt(), 6);
  const char* const names[] = {"attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"};
  for (int b = 0; b < kBlocks; ++b)
    for (int p = 0; p < kProducts; ++p) {
      float largest = 0;
      for (const float w : start.at(fmt::format("h.{}.{}.weight", b, names[p])))
        largest = std::max(largest, std::fabs(to_float(from_float<bf16>(w))));
      const size_t row = size_t(p * 3 * kHistory), weight = row + kHistory;
      const auto state = [&](int step) { return alone.states[size_t(step * kBlocks + b)]; };
      EXPECT_EQ(state(0)[weight], largest) << names[p];
      EXPECT_EQ(state(0)[weight + 1], 1) << "initial value";
      for (size_t r = row; r < row + 3 * kHistory; r += kHistory) {
        EXPECT_GT(state(0)[r], 0);
        EXPECT_NE(state(0)[r], 1) << "something was seen, row " << r / kHistory;
        for (int step = 1; step < 6; ++step)
          for (size_t i = 1; i < size_t(kHistory); ++i)
            ASSERT_EQ(state(step)[r + i], state(step - 1)[r + i - 1])
                << "step " << step << ", " << i << " back";
      }
    }
  for (const Layout& l : {Layout{.data = 2, .zero = 2},
                          {.pipe = 2},
                          {.tensor = 2},
                          {.data = 2, .tensor = 2, .zero = 3},
                          {.tensor = 2, .cut_rows = false},
                          {.zero = 1, .sequence = 2}}) {
    const Seen got = watch_states(l, wide_gpt(), 1);
    for (int b = 0; b < kBlocks; ++b)
      for (size_t i = 0; i < got.states[size_t(b)].size(); ++i) {
        const float want = alone.states[size_t(b)][i];
        const bool of_weight = i / size_t(kHistory) % 3 == 1;  // all ranks together have seen the whole
                                                               // weight
        EXPECT_NEAR(got.states[size_t(b)][i], want, of_weight ? 0 : 0.05 * want)
            << l.text() << ", block " << b << ", " << i;
      }
  }
}

// The loss is the mean over all targets, so twice the samples halve the gradients, but not the recorded
// magnitudes.
TEST(Fp8Training, RemembersGradientsAsIfTheyWereOfOneSample) {
  const Seen few = watch_states({}, wide_gpt(), 1, 4), many = watch_states({}, wide_gpt(), 1, 16);
  for (size_t b = 0; b < size_t(kBlocks); ++b)
    for (size_t row = 0; row < size_t(3 * kProducts); ++row)
      EXPECT_GE(many.states[b][row * kHistory], few.states[b][row * kHistory])
          << "block " << b << ", row " << row;
}

TEST(Fp8Training, GoesWithACheckpointIntoAnyLayout) {
  const Layout layouts[] = {{.data = 2, .zero = 3}, {.tensor = 2, .zero = 1}, {.pipe = 2}, {}};
  for (const Layout& from : layouts) {
    const Scratch scratch;
    Weights saved;
    std::vector<float> state;
    comm::run_ranks(from.ranks(), [&](comm::Communicator& world) {
      runtime::Engine engine(fp8_config(from, config::Fp8Scaling::delayed), wide_gpt(), world, {});
      const Training run = train(engine, world, 3, kTokens);
      engine.save_checkpoint(scratch.folder(), "a");
      const std::vector<float> mine = engine.layer_state("h.1.fp8");
      if (world.rank() == 0) saved = run.weights, state = mine;
    });
    for (const Layout& to : layouts)
      comm::run_ranks(to.ranks(), [&](comm::Communicator& world) {
        runtime::Engine engine(fp8_config(to, config::Fp8Scaling::delayed), wide_gpt(), world, {});
        engine.load_checkpoint(scratch.folder());
        EXPECT_EQ(weights_of(engine), saved) << to.text();
        EXPECT_EQ(engine.layer_state("h.1.fp8"), state) << to.text();
      });
  }
}

TEST(Fp8Training, BeginsAnewBehindATrainingWithoutItAndMayEnd) {
  const Scratch scratch;
  const auto alone = comm::self_communicator();
  const auto engine = [&](config::Fp8Scaling scaling) {
    return runtime::Engine(fp8_config({}, scaling), wide_gpt(), *alone, {});
  };
  runtime::Engine plain = engine(config::Fp8Scaling::off), with = engine(config::Fp8Scaling::delayed),
                  after = engine(config::Fp8Scaling::off);
  train(plain, *alone, 1, kTokens);
  plain.save_checkpoint(scratch.folder(), "plain");
  with.load_checkpoint(scratch.folder(), "plain");
  EXPECT_EQ(with.layer_state("h.0.fp8"), std::vector<float>(size_t(3 * kProducts * kHistory), 1.0f));
  train(with, *alone, 1, kTokens);
  with.save_checkpoint(scratch.folder(), "with");
  after.load_checkpoint(scratch.folder(), "with");
  EXPECT_EQ(weights_of(after), weights_of(with));
  config::DsConfig longer = fp8_config({}, config::Fp8Scaling::delayed);
  longer.fp8.history = 2 * kHistory;
  runtime::Engine other(longer, wide_gpt(), *alone, {});
  expect_error(Exit::checkpoint,
               {"h.0.fp8 has the wrong shape (got [12, 4], expected [12, 8])", "cleave.fp8.history"},
               [&] { other.load_checkpoint(scratch.folder(), "with"); });
}

TEST(Fp8Training, TrainsAdaptersOnFrozenFp8Products) {
  const auto losses = [](config::Fp8Scaling scaling, const Layout& l) {
    config::DsConfig c = fp8_config(l, scaling);
    c.lora = {{"all-linear"}, 4, 8, false};
    std::vector<double> out;
    for (const runtime::StepResult& s : train_on_all(l, c, wide_gpt(), 4).steps) out.push_back(s.loss);
    return out;
  };
  const std::vector<double> want = losses(config::Fp8Scaling::off, {});
  for (const config::Fp8Scaling scaling : kScalings)
    for (const Layout& l : {Layout{}, {.data = 2, .tensor = 2, .zero = 3}}) {
      const std::vector<double> got = losses(scaling, l);
      for (size_t s = 0; s < want.size(); ++s) EXPECT_NEAR(got[s], want[s], 0.01 * want[s]) << l.text();
      EXPECT_NE(got.back(), want.back());
    }
}

void expect_refused(const config::DsConfig& c, const runtime::ModelFactory& make,
                    std::initializer_list<std::string_view> words) {
  comm::run_ranks(c.tensor_parallel.autotp_size, [&](comm::Communicator& world) {
    expect_error(Exit::usage, words, [&] { const runtime::Engine engine(c, make, world, {}); });
  });
}

TEST(Fp8Training, RejectsSizesThatAreNotMultiplesOf16) {
  const config::DsConfig c = fp8_config({}, config::Fp8Scaling::delayed);
  expect_refused(c, wide_gpt(24),
                 {"cleave.fp8: unsupported shape (h.0.attn.c_attn maps 24 columns to 72", "multiples of 16"});
  expect_refused(fp8_config({.tensor = 2}, config::Fp8Scaling::row), wide_gpt(48),
                 {"h.0.attn.c_attn maps 48 columns to 72 per rank", "autotp_size"});
  expect_refused(c,
                 [](const model::Axes&) {
                   return model::make_mlp({{16, 16, 16}}, DType::bf16, "perceptron");
                 },
                 {"cleave.fp8: perceptron has no transformer blocks, so FP8 does not apply"});
}

}  // namespace
}  // namespace cleave::testing
