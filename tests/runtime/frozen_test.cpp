// Frozen units: the rest of the model trains as if they were constants, their values do not change, and only
// their working copy takes memory.
#include <gtest/gtest.h>

#include <numeric>

#include "tests/runtime/cut_models.h"
#include "tests/runtime/homes.h"
#include "tests/runtime/identity.h"
#include "tests/runtime/low_rank.h"
#include "tests/sampled.h"
#include "zero/flat_layout.h"

namespace cleave::testing {
namespace {

constexpr int64_t kWidth = 6, kClasses = 4, kSamples = 12;  // per step, over all ranks and micro-batches
constexpr int kSteps = 4;

// Two layers and a classifier on rows of kWidth numbers.
model::Model chain(DType type = DType::fp32) {
  model::Model m;
  m.name = "chain", m.dtype = type;
  m.layers.push_back(std::make_unique<LowRank>("first", "base.first", kWidth));
  m.layers.push_back(std::make_unique<LowRank>("second", "base.second", kWidth));
  m.head = std::make_unique<model::ClassifierHead>(model::ClassifierHead::Config{.unit = "head",
                                                                                 .weight = "head.weight",
                                                                                 .bias = "head.bias",
                                                                                 .classes = kClasses,
                                                                                 .width = kWidth,
                                                                                 .init_scale = 0.5f});
  m.sample = {type, {1, kWidth}};
  return m;
}
bool is_frozen(const std::string& name) { return name.starts_with("base."); }

struct Sample {
  std::vector<float> x;
  int32_t target = 0;
};
Sample sample_of(int step, int64_t index) {
  const Philox random{uint64_t(31 + step), uint64_t(index)};
  Sample s;
  for (uint64_t i = 0; i < kWidth; ++i) s.x.push_back(float(random.normal(i)));
  s.target = int32_t(2 * (s.x[0] > 0) + (s.x[1] + s.x[2] > 0));
  return s;
}

// Reference in double precision, one sample and one element at a time, with AdamW as in its paper.
class Reference {
 public:
  explicit Reference(const Weights& initial, const config::DsConfig& c) : c_(c) {
    for (const auto& [name, values] : initial) w_[name].assign(values.begin(), values.end());
  }

  runtime::StepResult step(int step) {
    std::map<std::string, std::vector<double>> g;
    for (const auto& [name, values] : w_) g[name].assign(values.size(), 0);
    runtime::StepResult result;
    for (int64_t i = 0; i < kSamples; ++i) result.loss += learn(sample_of(step, i), g) / kSamples;
    double squares = 0;
    for (const auto& [name, values] : g)
      for (const double x : values) squares += is_frozen(name) ? 0 : x * x;
    result.grad_norm = std::sqrt(squares);
    const double factor = std::min(1.0, c_.gradient_clipping / (result.grad_norm + 1e-6));
    for (auto& [name, values] : w_)
      if (!is_frozen(name)) update(name, values, g[name], factor, step + 1);
    return result;
  }
  const std::map<std::string, std::vector<double>>& weights() const { return w_; }

 private:
  using Row = std::vector<double>;
  using Grads = std::map<std::string, std::vector<double>>;

  // y = W x, and its backward: dx += W^T dy, dW += dy x^T / kSamples.
  Row times(const std::string& name, const Row& x) const {
    const Row& w = w_.at(name);
    Row y(w.size() / x.size(), 0);
    for (size_t o = 0; o < y.size(); ++o)
      for (size_t i = 0; i < x.size(); ++i) y[o] += w[o * x.size() + i] * x[i];
    return y;
  }
  void back(const std::string& name, const Row& x, const Row& dy, Row& dx, Grads& g) const {
    for (size_t o = 0; o < dy.size(); ++o)
      for (size_t i = 0; i < x.size(); ++i) {
        dx[i] += w_.at(name)[o * x.size() + i] * dy[o];
        g[name][o * x.size() + i] += dy[o] * x[i] / kSamples;
      }
  }

  double learn(const Sample& s, Grads& g) const {
    std::vector<Row> x{Row(s.x.begin(), s.x.end())}, inner;
    for (const std::string layer : {"first", "second"}) {
      Row y = times("base." + layer + ".weight", x.back());
      inner.push_back(times(layer + ".a", x.back()));
      const Row beside = times(layer + ".b", inner.back());
      for (size_t i = 0; i < y.size(); ++i) y[i] += w_.at("base." + layer + ".bias")[i] + beside[i];
      x.push_back(y);
    }
    Row z = times("head.weight", x.back());
    double sum = 0;
    for (size_t k = 0; k < z.size(); ++k) sum += std::exp(z[k] += w_.at("head.bias")[k]);
    const double loss = std::log(sum) - z[size_t(s.target)];
    Row dz(z.size()), dy(kWidth, 0);
    for (size_t k = 0; k < z.size(); ++k) {
      dz[k] = std::exp(z[k]) / sum - (int32_t(k) == s.target);
      g["head.bias"][k] += dz[k] / kSamples;
    }
    back("head.weight", x.back(), dz, dy, g);
    for (size_t l = 2; l-- > 0;) {
      const std::string layer = l == 0 ? "first" : "second";
      Row dx(kWidth, 0), dinner(inner[l].size(), 0);
      back("base." + layer + ".weight", x[l], dy, dx, g);
      back(layer + ".b", inner[l], dy, dinner, g);
      back(layer + ".a", x[l], dinner, dx, g);
      dy.swap(dx);
    }
    return loss;
  }

  void update(const std::string& name, Row& w, const Row& g, double factor, int t) {
    const config::OptimizerConfig& o = c_.optimizer;
    Row &m = m_[name], &v = v_[name];
    m.resize(w.size()), v.resize(w.size());
    for (size_t i = 0; i < w.size(); ++i) {
      m[i] = o.beta1 * m[i] + (1 - o.beta1) * g[i] * factor;
      v[i] = o.beta2 * v[i] + (1 - o.beta2) * g[i] * g[i] * factor * factor;
      if (name != "head.bias") w[i] *= 1 - o.lr * o.weight_decay;
      w[i] -=
          o.lr * (m[i] / (1 - std::pow(o.beta1, t))) / (std::sqrt(v[i] / (1 - std::pow(o.beta2, t))) + o.eps);
    }
  }

  config::DsConfig c_;
  std::map<std::string, std::vector<double>> w_, m_, v_;
};

config::DsConfig chain_config(int ranks, int stage, int accumulation) {
  config::DsConfig c = config_for(ranks, kSamples / ranks / accumulation, accumulation);
  c.zero.stage = stage, c.optimizer.lr = 0.01, c.optimizer.eps = 1e-3, c.gradient_clipping = 0.5;
  return c;
}

std::vector<runtime::StepResult> train_chain(runtime::Engine& engine, comm::Communicator& world) {
  std::vector<runtime::StepResult> steps;
  const int64_t micro = engine.config().train_micro_batch_size_per_gpu;
  for (int step = 0; step < kSteps; ++step) {
    std::vector<float> x;
    std::vector<int32_t> y;
    steps.push_back(engine.train_batch([&](int m) {
      x.clear(), y.clear();
      for (int64_t i = 0; i < micro; ++i) {
        const Sample s = sample_of(step, (int64_t(m) * world.size() + world.rank()) * micro + i);
        x.insert(x.end(), s.x.begin(), s.x.end()), y.push_back(s.target);
      }
      return Batch{.input = Tensor(x.data(), DType::fp32, {micro, kWidth}, MemoryKind::host),
                   .targets = Tensor(y.data(), DType::int32, {micro}, MemoryKind::host),
                   .valid_targets = micro};
    }));
  }
  return steps;
}

void expect_as_the_reference(const config::DsConfig& c, int ranks, const std::string& what) {
  comm::run_ranks(ranks, [&](comm::Communicator& world) {
    runtime::Engine engine(c, chain(), world, kWorkers);
    const Weights before = weights_of(engine);
    Reference reference(before, c);
    const std::vector<runtime::StepResult> steps = train_chain(engine, world);
    for (int step = 0; step < kSteps; ++step) {
      const runtime::StepResult want = reference.step(step);
      EXPECT_NEAR(steps[size_t(step)].loss, want.loss, 1e-5) << what << ", step " << step;
      EXPECT_NEAR(steps[size_t(step)].grad_norm, want.grad_norm, 1e-5) << what << ", step " << step;
    }
    for (const auto& [name, values] : weights_of(engine)) {
      EXPECT_EQ(values == before.at(name), is_frozen(name)) << what << ", " << name;
      for (size_t i = 0; i < values.size(); ++i)
        ASSERT_NEAR(values[i], reference.weights().at(name)[i], 1e-5) << what << ", " << name << " " << i;
    }
    EXPECT_EQ(engine.memory_planned(), engine.memory_peak()) << what;
    EXPECT_EQ(engine.memory_planned(), engine.memory_live()) << what;
  });
}

TEST(Frozen, TheRestLearnsWhatItLearnsInDoublePrecisionAtEveryStage) {
  for (int ranks : {1, 2, 3})
    for (int stage : {0, 1, 2, 3})
      for (bool overlap : {false, true})
        for (bool exact : {false, true}) {
          config::DsConfig c = chain_config(ranks, stage, 2);
          c.zero.overlap_comm = overlap, c.exact_sums = exact;
          expect_as_the_reference(
              c, ranks,
              fmt::format("{} ranks, stage {}, overlap {}, exact {}", ranks, stage, overlap, exact));
        }
}

TEST(Frozen, TheRestLearnsTheSameWhereverEverythingLives) {
  Sampled sampled;
  for (int ranks : {1, 2})
    for (int stage : {2, 3})
      for (const Homes& h : all_homes()) {
        if (!sampled.next()) continue;
        const config::DsConfig c = with(chain_config(ranks, stage, 2), h);
        expect_as_the_reference(c, ranks, text_of(h, c));
      }
}

TEST(Frozen, EveryOptimizerPassesThemOver) {
  for (const config::OptimizerType type :
       {config::OptimizerType::adam, config::OptimizerType::lamb, config::OptimizerType::lion,
        config::OptimizerType::adagrad, config::OptimizerType::sgd})
    comm::run_ranks(2, [&](comm::Communicator& world) {
      config::DsConfig c = chain_config(2, 2, 1);
      c.optimizer.type = type;
      runtime::Engine engine(c, chain(), world, {});
      const Weights before = weights_of(engine);
      train_chain(engine, world);
      for (const auto& [name, values] : weights_of(engine))
        EXPECT_EQ(values == before.at(name), is_frozen(name)) << name_of(type) << ", " << name;
    });
}

// Weights cover all units in the type's width; everything else covers only trained units.
TEST(Frozen, HoldTheirWorkingCopyAndNothingElse) {
  for (int ranks : {1, 2, 3})
    for (int stage : {0, 1, 2, 3})
      for (bool offload : {false, true})
        comm::run_ranks(ranks, [&](comm::Communicator& world) {
          config::DsConfig c = chain_config(ranks, stage, 1);
          c.precision = config::Precision::bf16;
          if (offload) c.zero.offload_optimizer.device = config::OffloadDevice::cpu;
          runtime::Engine engine(c, chain(DType::bf16), world, {});
          int64_t trained = 0, frozen = 0;
          for (const UnitSpec& u : engine.model().units())
            (u.frozen ? frozen : trained) += zero::FlatLayout(u, stage == 0 ? 1 : ranks).numel();
          EXPECT_GE(frozen, 2 * (kWidth * kWidth + kWidth));
          const MemoryTable planned = engine.memory_planned();
          const int shards = stage == 0 ? 1 : ranks;
          EXPECT_EQ(planned.total(Category::weights), 2 * (trained + frozen) / (stage == 3 ? ranks : 1));
          EXPECT_EQ(planned.total(Category::gradients), 2 * trained / (stage >= 2 ? ranks : 1));
          EXPECT_EQ(planned.total(Category::master), 4 * trained / shards);
          EXPECT_EQ(planned.total(Category::optimizer_state), 8 * trained / shards);
        });
}

// Two layers that share a frozen unit, and an unused frozen parameter cut by a tensor axis.
class Holder final : public Identity {
 public:
  explicit Holder(const tensor_parallel::TensorAxis& axis) : axis_(axis) {}
  std::vector<UnitSpec> units() const override {
    const ParamSpec p{"held.weight", {8, 5}, {Init::Kind::uniform, 1.0f}, true};
    return {{"held", {axis_.cut(p, 0), {"held.whole", {3}, {Init::Kind::ones}}}, true}};
  }

 private:
  tensor_parallel::TensorAxis axis_;
};

runtime::ModelFactory gpt(bool frozen = true) {
  return [=](const model::Axes& axes) {
    model::Model m = cut_gpt(true)(axes);
    m.layers.insert(m.layers.begin() + 1, std::make_unique<LowRank>("early", "base", 16, frozen));
    m.layers.insert(m.layers.end() - 1, std::make_unique<LowRank>("late", "base", 16, frozen));
    m.layers.insert(m.layers.end() - 1, std::make_unique<Holder>(axes.tensor));
    return m;
  };
}

config::DsConfig gpt_config(const Layout& l) {
  config::DsConfig c = config_of(l, 4);
  c.optimizer.eps = 1e-2;
  return c;
}

TEST(Frozen, TheRestLearnsTheSameInPipelinesAndOverTensorAndSequenceAxes) {
  const Training want = train_on_all({}, gpt_config({}), gpt(), kSteps);
  const Training start = train_on_all({}, gpt_config({}), gpt(), 0);
  std::vector<Layout> layouts;
  for (const char* schedule : {"1f1b", "gpipe", "interleaved", "zb-h1"})
    for (int zero : {0, 2, 3}) layouts.push_back({.pipe = 2, .zero = zero, .schedule = schedule});
  layouts.push_back({.pipe = 4, .zero = 1});
  for (bool offload : {false, true})
    for (int zero : {0, 3}) {
      layouts.push_back({.tensor = 2, .zero = zero, .offload = offload});
      layouts.push_back({.tensor = 2, .zero = zero, .offload = offload, .cut_rows = false});
      layouts.push_back({.pipe = 2, .tensor = 2, .zero = zero, .offload = offload});
      layouts.push_back({.zero = zero, .offload = offload, .sequence = 2});
    }
  for (const Layout& l : layouts) {
    const Training got = train_on_all(l, gpt_config(l), gpt(), kSteps);
    expect_close(got, want, 1e-5, l.text());
    for (const char* name : {"base.weight", "base.bias", "held.weight", "held.whole"})
      EXPECT_EQ(got.weights.at(name), start.weights.at(name)) << l.text() << " " << name;
  }
}

TEST(Frozen, BeginWithTheValuesThatTheyWouldHaveIfTheyWereTrained) {
  const Weights want = train_on_all({}, gpt_config({}), gpt(false), 0).weights;
  for (const Layout& l : {Layout{}, {.data = 3, .zero = 3}, {.tensor = 2, .zero = 1}})
    EXPECT_EQ(train_on_all(l, gpt_config(l), gpt(true), 0).weights, want) << l.text();
}

// Frozen and trained parameters alike, from any layout to any other.
TEST(Frozen, CheckpointsMoveBetweenLayouts) {
  const Layout layouts[] = {{.data = 2, .zero = 3},
                            {.pipe = 2, .data = 2, .zero = 1},
                            {.tensor = 2, .zero = 2, .offload = true},
                            {}};
  const auto config = [](const Layout& l, bool disk) {
    config::DsConfig c = gpt_config(l);
    return disk ? with(c, {.parameters = true, .optimizer = true, .disk = true}) : c;
  };
  for (const Layout& from : layouts) {
    const Scratch scratch;
    Weights saved;
    comm::run_ranks(from.ranks(), [&](comm::Communicator& world) {
      runtime::Engine engine(config(from, from.zero == 3), gpt(), world, {.seed = 3});
      Training run = train(engine, world, 2, kTokens);
      engine.save_checkpoint(scratch.folder(), "a");
      if (world.rank() == 0) saved = std::move(run.weights);
    });
    for (const Layout& to : layouts)
      comm::run_ranks(to.ranks(), [&](comm::Communicator& world) {
        runtime::Engine engine(config(to, to.zero == 3), gpt(), world, {.seed = 4});
        EXPECT_NE(engine.parameter("base.weight"), saved.at("base.weight"));
        engine.load_checkpoint(scratch.folder());
        EXPECT_EQ(weights_of(engine), saved) << from.text() << " to " << to.text();
        const Training run = train(engine, world, 1, kTokens);
        EXPECT_EQ(run.weights.at("base.weight"), saved.at("base.weight"));
      });
  }
}

TEST(Frozen, ATrainedCheckpointLoadsAndTheReverseRequiresAnOptimizerReset) {
  const auto alone = comm::self_communicator();
  const Scratch trained, frozen;
  runtime::Engine a(gpt_config({}), gpt(false), *alone, {.seed = 3}),
      b(gpt_config({}), gpt(true), *alone, {.seed = 4});
  train(a, *alone, 1, kTokens), a.save_checkpoint(trained.folder(), "a");
  b.save_checkpoint(frozen.folder(), "b");
  runtime::Engine from_trained(gpt_config({}), gpt(true), *alone, {});
  from_trained.load_checkpoint(trained.folder());
  EXPECT_EQ(weights_of(from_trained), weights_of(a));
  runtime::Engine from_frozen(gpt_config({}), gpt(false), *alone, {});
  expect_error(Exit::checkpoint, {"missing: exp_avg of base.", "frozen", "--reset_optimizer"},
               [&] { from_frozen.load_checkpoint(frozen.folder()); });
  from_frozen.load_checkpoint(frozen.folder(), "latest", {.optimizer = false});
  EXPECT_EQ(weights_of(from_frozen), weights_of(b));
}

// Parameters frozen by name patterns (cleave.freeze): an embedding with an optionally tied head, halves and
// heads, in GPT-2 and, with norms of heads and joint products, Qwen3.
struct Named {
  const char* what;
  runtime::ModelFactory model;
  std::vector<std::string> patterns;
  std::vector<const char*> frozen;  // substrings of their names
};
std::vector<Named> named() {
  return {
      {"a tied embedding and every MLP", cut_gpt(true), {"transformer.wte*", "*.mlp.*"}, {"wte", ".mlp."}},
      {"attention", cut_gpt(false), {"*.attn.*", "h.0.ln_1.*"}, {".attn.", "h.0.ln_1."}},
      {"positions and a head", cut_gpt(false), {"wpe.*", "lm_head.*"}, {"wpe", "lm_head"}},
      {"matrices but not biases", cut_gpt(false), {"h.*.weight", "*wte*"}, {"h.0.attn.c_attn.weight", "wte"}},
      {"a block, an embedding, norms of heads",
       cut_decoder(model::kQwen3, false, DType::fp32, 2, 4),
       {"model.embed_tokens.*", "model.layers.1.*", "*_norm.weight"},
       {"embed_tokens", "layers.1.", "q_norm", "k_norm"}}};
}

bool has_one_of(const std::string& name, const std::vector<const char*>& parts) {
  return std::any_of(parts.begin(), parts.end(),
                     [&](const char* part) { return name.find(part) != std::string::npos; });
}

config::DsConfig named_config(const Named& n, const Layout& l) {
  config::DsConfig c = config_of(l, 4 / l.data);
  c.optimizer.eps = 1e-2, c.freeze = n.patterns;
  return c;
}

// Plain gradient descent without clipping: after one step the other parameters equal those of a run with
// nothing frozen.
TEST(FrozenByName, DoNotChangeAndOthersMoveByTheWholeModelsGradient) {
  for (const Named& n : named()) {
    config::DsConfig c = named_config(n, {});
    c.optimizer.type = config::OptimizerType::sgd, c.optimizer.weight_decay = 0, c.gradient_clipping = 0;
    const Training start = train_on_all({}, c, n.model, 0), got = train_on_all({}, c, n.model, 1);
    c.freeze = {};
    const Training want = train_on_all({}, c, n.model, 1);
    int frozen = 0, moved = 0;
    for (const auto& [name, values] : got.weights) {
      const bool stays = values == start.weights.at(name) && want.weights.at(name) != values;
      frozen += stays, moved += !stays && values != start.weights.at(name);
      if (stays) continue;
      EXPECT_EQ(values, want.weights.at(name)) << n.what << ", " << name;
      EXPECT_FALSE(has_one_of(name, n.frozen)) << n.what << ", " << name;
    }
    EXPECT_GT(frozen, 0) << n.what;
    EXPECT_GT(moved, 0) << n.what;
  }
}

TEST(FrozenByName, TrainTheOthersEquallyInEveryLayout) {
  Sampled sampled;
  for (const Named& n : named()) {
    const Training want = train_on_all({}, named_config(n, {}), n.model, kSteps);
    const Training start = train_on_all({}, named_config(n, {}), n.model, 0);
    std::vector<Layout> layouts{{.data = 4, .zero = 3},
                                {.data = 2, .zero = 2, .offload = true},
                                {.tensor = 2, .zero = 1},
                                {.tensor = 2, .zero = 0, .cut_rows = false},
                                {.zero = 1, .sequence = 2}};
    for (const char* schedule : {"1f1b", "interleaved", "zb-h1"})
      layouts.push_back({.pipe = 2, .zero = 2, .schedule = schedule});
    layouts.push_back({.pipe = 2, .tensor = 2, .zero = 3});
    for (const Layout& l : layouts) {
      if (!sampled.next()) continue;
      const Training got = train_on_all(l, named_config(n, l), n.model, kSteps);
      expect_close(got, want, 1e-5, fmt::format("{}, {}", n.what, l.text()));
      for (const auto& [name, values] : got.weights)
        if (want.weights.at(name) == start.weights.at(name)) {
          EXPECT_EQ(values, start.weights.at(name)) << n.what << ", " << l.text() << " " << name;
        }
    }
    for (const bool lean : {false, true}) {
      config::DsConfig c = named_config(n, {});
      c.checkpointing.lean = lean, c.checkpointing.interval = lean ? 0 : 1;
      expect_same_bits(train_on_all({}, c, n.model, kSteps), want, n.what);
    }
  }
}

TEST(FrozenByName, CostTheirWorkingCopyAndNothingElse) {
  for (const Named& n : named())
    for (const int ranks : {1, 2})
      for (const int stage : {0, 2, 3})
        comm::run_ranks(ranks, [&](comm::Communicator& world) {
          config::DsConfig c = named_config(n, {.data = ranks, .zero = stage});
          runtime::Engine engine(c, n.model, world, {});
          int64_t trained = 0, frozen = 0;
          for (const UnitSpec& u : engine.model().units())
            (u.frozen ? frozen : trained) += zero::FlatLayout(u, stage == 0 ? 1 : ranks).numel();
          EXPECT_GT(frozen, 0) << n.what;
          const MemoryTable planned = engine.memory_planned();
          EXPECT_EQ(planned.total(Category::weights) + planned.total(Category::master),
                    4 * (trained + frozen) / (stage == 3 ? ranks : 1))
              << n.what;
          EXPECT_EQ(planned.total(Category::gradients), 4 * trained / (stage >= 2 ? ranks : 1)) << n.what;
          EXPECT_EQ(planned.total(Category::optimizer_state), 8 * trained / (stage == 0 ? 1 : ranks))
              << n.what;
        });
}

TEST(FrozenByName, RefuseALayerThatKnowsNothingOfIt) {
  const auto alone = comm::self_communicator();
  config::DsConfig c = chain_config(1, 0, 1);
  c.freeze = {"head.*"};
  runtime::Engine(c, chain(), *alone, {});
  c.freeze = {"first.a"};
  expect_error(Exit::usage, {"cleave.freeze", "first.a", "units()"},
               [&] { runtime::Engine(c, chain(), *alone, {}); });
  c.freeze = {"base.*"};  // declared as frozen by the layer
  runtime::Engine(c, chain(), *alone, {});
}

// Writes the gradient of its frozen parameter anyway.
class Careless final : public Identity {
 public:
  std::vector<UnitSpec> units() const override {
    return {{"careless", {{"careless.weight", {4}, {}}}, true}};
  }
  void backward(const model::BackwardArgs& a) const override { a.grads[0].accumulate(); }
};

TEST(Frozen, ALayerThatWritesTheirGradientIsTold) {
  model::Model m = chain();
  m.layers.push_back(std::make_unique<Careless>());
  const auto alone = comm::self_communicator();
  expect_error(Exit::internal, {"frozen parameter", "wanted()"},
               [&] { runtime::Engine(chain_config(1, 0, 1), std::move(m), *alone, {}); });
}

TEST(Frozen, LayersThatShareAUnitAgreeOnIt) {
  model::Model m = chain();
  m.layers.push_back(std::make_unique<LowRank>("third", "base.first", kWidth, false));
  const auto alone = comm::self_communicator();
  expect_error(Exit::usage, {"base.first", "but only one of them freezes it; freeze both or neither"},
               [&] { runtime::Engine(chain_config(1, 0, 1), std::move(m), *alone, {}); });
}

}  // namespace
}  // namespace cleave::testing
