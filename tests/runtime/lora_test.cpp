// Adapters on frozen layers (cleave.lora) train as in the peft library, equally in every layout; the other
// parameters do not change and take only their working copy. tests/fixtures/make_lora_fixtures.py makes the
// numbers.
#include <gtest/gtest.h>

#include "checkpoint/safetensors.h"
#include "model/presets.h"
#include "tests/runtime/cut_models.h"
#include "tests/runtime/transformers_weights.h"
#include "tests/scratch.h"
#include "zero/flat_layout.h"

namespace cleave::testing {
namespace {

constexpr int64_t kRows = 2, kLength = 16;
constexpr size_t kSteps = 10;

bool is_adapter(const std::string& name) { return name.find(".lora_") != std::string::npos; }

// A model of the transformers library, its frozen weights, and the adapters that peft trains.
class Peft {
 public:
  Peft(std::string base, config::LoraConfig config)
      : lora(std::move(config)),
        base_(std::move(base)),
        frozen_(FIXTURES "/" + base_ + ".safetensors"),
        adapters_(FIXTURES "/lora_" + base_ + ".safetensors") {}

  config::LoraConfig lora;

  const std::string& base() const { return base_; }
  bool gpt2() const { return base_ == "gpt2_tiny"; }
  runtime::ModelFactory model() const {
    const model::ModelConfig config =
        gpt2() ? model::model_config(model::kGpt2,
                                     {.vocab = 61, .positions = 24, .width = 16, .layers = 2, .heads = 2})
               : model::find_model(FIXTURES "/" + base_ + ".config.json");
    return [config, name = base_](const model::Axes& axes) {
      return model::make_model(config, DType::fp32, kLength, name, axes);
    };
  }
  // Returns a value from the set `prefix` of the adapters ("", "grad.", "step10."); frozen parameters have
  // one value.
  std::vector<float> parameter(const ParamSpec& spec, const std::string& prefix) const {
    if (is_adapter(spec.name))
      return of_adapters(prefix + "base_model.model." + (gpt2() ? "transformer." : "") + spec.name);
    return gpt2() ? gpt2_parameter(frozen_, spec, "") : stored_values<float>(frozen_, spec.name);
  }
  std::vector<float> of_adapters(const std::string& name) const {
    return stored_values<float>(adapters_, name);
  }
  size_t adapters() const { return (adapters_.tensors().size() - 2) / 3; }
  std::vector<int32_t> tokens(const std::string& name) const { return stored_values<int32_t>(frozen_, name); }

 private:
  std::string base_;
  checkpoint::SafetensorsFile frozen_, adapters_;
};

// As in the fixtures' script.
std::vector<Peft> fixtures() {
  std::vector<Peft> all;
  all.emplace_back("llama_tiny", config::LoraConfig{{"all-linear"}, 3, 6, false});
  all.emplace_back("qwen2_tiny", config::LoraConfig{{"q_proj", "v_proj"}, 2, 5, false});
  all.emplace_back("phi3_tiny", config::LoraConfig{{"qkv_proj", "gate_up_proj", "down_proj"}, 4, 3, true});
  all.emplace_back("gpt2_tiny", config::LoraConfig{{"c_attn", "mlp.c_proj"}, 2, 4, false});
  return all;
}

// One row per micro-batch in a pipeline, else one micro-batch per rank.
config::DsConfig peft_config(const Peft& peft, const Layout& l) {
  const int64_t micro = l.pipe > 1 ? 1 : kRows / l.data;
  config::DsConfig c = config_of(l, int(kRows / l.data / micro), int(micro));
  c.optimizer.lr = 2e-3, c.optimizer.eps = 1e-8, c.optimizer.weight_decay = 0.1;
  c.lora = peft.lora;
  return c;
}

struct Batches {
  std::vector<int32_t> tokens, targets;
  BatchSource of(const runtime::Engine& engine, comm::Communicator& world) {
    return [this, mesh = engine.mesh(), place = engine.mesh().place(world.rank()).data,
            samples = engine.samples_per_micro()](int micro) {
      const int64_t first = (micro * mesh.data + place) * samples, n = samples * kLength;
      const auto part = [&](std::vector<int32_t>& v) {
        return Tensor(v.data() + first * kLength, DType::int32, {n}, MemoryKind::host);
      };
      return Batch{.input = part(tokens),
                   .targets = part(targets),
                   .valid_targets = n,
                   .position = {.first_sample = first}};
    };
  }
};

std::vector<Layout> layouts_of(const Peft& peft) {
  std::vector<Layout> all{{},
                          {.data = 2, .zero = 1},
                          {.data = 2, .zero = 2, .offload = true},
                          {.data = 2, .zero = 3},
                          {.pipe = 2, .zero = 1, .schedule = "zb-h1"},
                          {.pipe = 2, .data = 2, .zero = 3, .schedule = "interleaved"},
                          {.tensor = 2},
                          {.tensor = 2, .zero = 1, .cut_rows = false},
                          {.data = 2, .tensor = 2, .zero = 3},
                          {.pipe = 2, .tensor = 2, .zero = 1, .schedule = "zb-h1"},
                          {.zero = 1, .sequence = 2}};
  // Ranks share key/value heads here; in the other models one matrix holds them and the queries.
  if (peft.base() == "llama_tiny") all.push_back({.tensor = 4, .zero = 1});
  if (peft.base() == "qwen2_tiny") all.push_back({.tensor = 4, .cut_rows = false});
  return all;
}

void expect_as_peft(const Peft& peft, const Layout& l) {
  comm::run_ranks(l.ranks(), [&](comm::Communicator& world) {
    const std::string what = peft.base() + ", " + l.text();
    const auto losses = peft.of_adapters("losses"), norms = peft.of_adapters("grad_norms");
    ASSERT_EQ(losses.size(), kSteps);
    runtime::Engine engine(peft_config(peft, l), peft.model(), world, {});
    engine.set_parameters([&](const ParamSpec& p) { return peft.parameter(p, ""); });
    Batches batches{peft.tokens("tokens"), peft.tokens("targets")};
    for (size_t step = 0; step < kSteps; ++step) {
      const runtime::StepResult r = engine.train_batch(batches.of(engine, world));
      EXPECT_NEAR(r.loss, losses[step], 1e-5 * losses[step]) << what << ", step " << step;
      EXPECT_NEAR(r.grad_norm, norms[step], 1e-5 * norms[step]) << what << ", step " << step;
    }
    size_t adapters = 0;
    for (const UnitSpec& unit : engine.model().units())
      for (const ParamSpec& p : unit.params) {
        const std::vector<float> got = engine.parameter(p.name);
        EXPECT_EQ(unit.frozen, !is_adapter(p.name)) << what << ", " << p.name;
        if (unit.frozen) {
          EXPECT_EQ(got, peft.parameter(p, "")) << what << ", " << p.name;
          continue;
        }
        EXPECT_LT(relative_distance(got, peft.parameter(p, "step10.")), 1e-5) << what << ", " << p.name;
        ++adapters;
      }
    EXPECT_EQ(adapters, peft.adapters()) << what;
    EXPECT_EQ(engine.memory_planned(), engine.memory_peak()) << what;
  });
}

TEST(Lora, LearnsWhatItLearnsInPeftInEveryLayout) {
  for (const Peft& peft : fixtures())
    for (const Layout& l : layouts_of(peft)) expect_as_peft(peft, l);
}

// Plain gradient descent with a large rate: adapters move by the gradient, visible without cancellation.
TEST(Lora, HasTheGradientsOfPeft) {
  for (const Peft& peft : fixtures())
    for (const Layout& l : {Layout{}, {.tensor = 2}})
      comm::run_ranks(l.ranks(), [&](comm::Communicator& world) {
        config::DsConfig c = peft_config(peft, l);
        c.optimizer.type = config::OptimizerType::sgd, c.optimizer.weight_decay = 0, c.gradient_clipping = 0;
        const double rate = c.optimizer.lr = 4096;
        runtime::Engine engine(c, peft.model(), world, {});
        engine.set_parameters([&](const ParamSpec& p) { return peft.parameter(p, ""); });
        Batches batches{peft.tokens("tokens"), peft.tokens("targets")};
        engine.train_batch(batches.of(engine, world));
        for (const UnitSpec& unit : engine.model().units())
          for (const ParamSpec& p : unit.params) {
            if (unit.frozen) continue;
            const std::vector<float> before = peft.parameter(p, "");
            std::vector<float> gradient = engine.parameter(p.name);
            for (size_t i = 0; i < gradient.size(); ++i)
              gradient[i] = float((double(before[i]) - gradient[i]) / rate);
            EXPECT_LT(relative_distance(gradient, peft.parameter(p, "grad.")), 1e-5)
                << peft.base() << ", " << p.name << ", " << l.text();
          }
      });
}

config::DsConfig small_config(const Layout& l) {
  config::DsConfig c = config_of(l, 4 / l.data);
  c.optimizer.eps = 1e-2;
  c.lora = {{"all-linear"}, 2, 4, false};
  return c;
}

TEST(Lora, StartsWithTheOutputOfTheBaseModel) {
  for (const Layout& l : {Layout{}, {.tensor = 2}, {.data = 3, .zero = 3}}) {
    config::DsConfig with = config_of(l, 1), without = with;
    with.lora = {{"all-linear"}, 2, 4, false};
    const Training got = train_on_all(l, with, cut_llama(false), 1);
    const Training want = train_on_all(l, without, cut_llama(false), 1);
    EXPECT_EQ(got.steps[0].loss, want.steps[0].loss) << l.text();
  }
}

// A of any width: uniform between minus and plus the root of 1 / in. B: zeros.
TEST(Lora, InitialValuesAreThoseOfPeft) {
  const Training start = train_on_all({}, small_config({}), cut_llama(false), 0);
  int seen = 0;
  for (const auto& [name, values] : start.weights) {
    if (name.ends_with(".lora_B.weight")) {
      EXPECT_EQ(values, std::vector<float>(values.size())) << name;
    }
    if (!name.ends_with(".lora_A.weight")) continue;
    const double bound = 1 / std::sqrt(double(values.size()) / 2);
    double squares = 0, largest = 0;
    for (const float v : values) squares += double(v) * v, largest = std::max(largest, std::abs(double(v)));
    EXPECT_LE(largest, bound) << name;
    EXPECT_GT(largest, 0.6 * bound) << name;
    EXPECT_NEAR(squares / double(values.size()), bound * bound / 3, 0.2 * bound * bound) << name;
    ++seen;
  }
  EXPECT_EQ(seen, 3 * 7);
}

TEST(Lora, LearnsTheSameWithLessKept) {
  const Training want = train_on_all({}, small_config({}), cut_llama(false), 3);
  for (const bool lean : {false, true}) {
    config::DsConfig c = small_config({});
    c.checkpointing.lean = lean, c.checkpointing.interval = lean ? 0 : 1;
    expect_same_bits(train_on_all({}, c, cut_llama(false), 3), want, lean ? "lean" : "every layer again");
  }
}

TEST(Lora, LearnsIn16Bits) {
  for (const config::Precision type : {config::Precision::bf16, config::Precision::fp16})
    for (const Layout& l : {Layout{}, {.data = 2, .tensor = 2, .zero = 3}}) {
      config::DsConfig c = small_config(l);
      c.precision = type;
      c.fp16.enabled = type == config::Precision::fp16, c.fp16.initial_scale_power = 4;
      const DType dtype = type == config::Precision::bf16 ? DType::bf16 : DType::fp16;
      const Training got = train_on_all(l, c, cut_llama(false, dtype), 4);
      const Training want = train_on_all({}, small_config({}), cut_llama(false), 4);
      for (size_t s = 0; s < got.steps.size(); ++s)  // a few roundings to 16 bits
        EXPECT_NEAR(got.steps[s].loss, want.steps[s].loss, 0.01 * want.steps[s].loss) << l.text();
      for (const auto& [name, values] : got.weights)
        if (name.ends_with(".lora_B.weight")) {
          EXPECT_NE(values, std::vector<float>(values.size())) << name << ", " << l.text();
        }
    }
}

TEST(Lora, CostsTheWorkingCopyOfTheRestAndNothingElse) {
  for (const int ranks : {1, 2})
    for (const int stage : {0, 2, 3})
      comm::run_ranks(ranks, [&](comm::Communicator& world) {
        runtime::Engine engine(small_config({.data = ranks, .zero = stage}), cut_llama(false), world, {});
        int64_t trained = 0, frozen = 0;
        for (const UnitSpec& u : engine.model().units())
          (u.frozen ? frozen : trained) += zero::FlatLayout(u, stage == 0 ? 1 : ranks).numel();
        EXPECT_GT(frozen, 4 * trained);
        const MemoryTable planned = engine.memory_planned();
        EXPECT_EQ(planned.total(Category::weights) + planned.total(Category::master),
                  4 * (trained + frozen) / (stage == 3 ? ranks : 1));
        EXPECT_EQ(planned.total(Category::gradients), 4 * trained / (stage >= 2 ? ranks : 1));
        EXPECT_EQ(planned.total(Category::optimizer_state), 8 * trained / (stage == 0 ? 1 : ranks));
      });
}

TEST(Lora, CheckpointsMoveBetweenLayouts) {
  const Layout layouts[] = {{.data = 2, .zero = 3}, {.tensor = 2, .zero = 1}, {.pipe = 2}, {}};
  const auto alone = comm::self_communicator();
  runtime::Engine uncut(small_config({}), cut_llama(false), *alone, {});
  train(uncut, *alone, 2, kTokens);
  const Training want = train(uncut, *alone, 2, kTokens);
  for (const Layout& from : layouts) {
    const Scratch scratch;
    comm::run_ranks(from.ranks(), [&](comm::Communicator& world) {
      runtime::Engine engine(small_config(from), cut_llama(false), world, {});
      train(engine, world, 2, kTokens);
      engine.save_checkpoint(scratch.folder(), "a");
    });
    for (const Layout& to : layouts)
      comm::run_ranks(to.ranks(), [&](comm::Communicator& world) {
        runtime::Engine engine(small_config(to), cut_llama(false), world, {.seed = 4});
        engine.load_checkpoint(scratch.folder());
        const Training got = train(engine, world, 2, kTokens);
        EXPECT_NEAR(got.steps.back().loss, want.steps.back().loss, 1e-5 * want.steps.back().loss)
            << from.text() << " to " << to.text();
        EXPECT_LT(relative_distance(got.weights, want.weights), 1e-5) << from.text() << " to " << to.text();
      });
  }
}

TEST(Lora, RefusesTargetsThatNothingIsCalled) {
  const auto alone = comm::self_communicator();
  config::DsConfig c = small_config({});
  c.lora.targets = {"q_proj", "c_attn"};
  expect_error(
      Exit::usage,
      {"cleave.lora.targets", "\"c_attn\"", "q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj"},
      [&] { runtime::Engine(c, cut_llama(false), *alone, {}); });
  c.lora.targets = {"proj"};
  expect_error(Exit::usage, {"\"proj\""}, [&] { runtime::Engine(c, cut_llama(false), *alone, {}); });
  c.lora.targets = {"transformer.h.0.attn.c_attn"};  // name in files
  runtime::Engine(c, fixtures().back().model(), *alone, {});
}

}  // namespace
}  // namespace cleave::testing
