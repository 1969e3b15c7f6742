// Every family against the transformers library in double precision; tests/fixtures/make_gpt2_fixtures.py and
// make_decoder_fixtures.py make the numbers.
#include <algorithm>
#include <numeric>

#include "checkpoint/safetensors.h"
#include "model/presets.h"
#include "tests/runtime/compare.h"
#include "tests/runtime/transformers_weights.h"

namespace cleave::testing {
namespace {

constexpr int64_t kSteps = 20, kRows = 2, kLength = 16;

class Oracle {
 public:
  explicit Oracle(std::string name) : name_(std::move(name)), file_(FIXTURES "/" + name_ + ".safetensors") {}

  bool gpt2() const { return name_.starts_with("gpt2"); }
  runtime::ModelFactory model() const {
    const model::ModelConfig config =
        gpt2() ? model::model_config(model::kGpt2, {.vocab = 61,
                                                    .positions = 24,
                                                    .width = 16,
                                                    .layers = 2,
                                                    .heads = 2,
                                                    .attention_dropout = name_ == "gpt2_dropout" ? 0.25f : 0})
               : model::find_model(FIXTURES "/" + name_ + ".config.json");
    return [config, name = name_](const model::Axes& axes) {
      return model::make_model(config, DType::fp32, kLength, name, axes);
    };
  }

  template <class T = float>
  std::vector<T> get(const std::string& name) const {
    return stored_values<T>(file_, name);
  }
  // Returns our parameter's value from the set `prefix` ("", "grad.", "step20.").
  std::vector<float> parameter(const ParamSpec& spec, const std::string& prefix) const {
    return gpt2() ? gpt2_parameter(file_, spec, prefix) : get(prefix + spec.name);
  }

 private:
  std::string name_;
  checkpoint::SafetensorsFile file_;
};

struct Layout {
  int data = 1, stage = 0, pipe = 1;
  const char* schedule = "1f1b";
  int tensor = 1;
  bool cut_rows = true;
  int sequence = 1;
  const char* recompute = "";  // lean: cheap parts; every: whole layers
  int ranks() const { return data * pipe * tensor * sequence; }
};

struct Case {
  const char* fixture;
  Layout layout;
};

// One row per micro-batch in a pipeline, else one micro-batch per rank.
config::DsConfig config(const Layout& l) {
  const int64_t micro = l.pipe > 1 ? 1 : kRows / l.data;
  config::DsConfig c = config_for(l.data, micro, kRows / l.data / micro);
  c.optimizer.lr = 1e-3, c.optimizer.weight_decay = 0.1;
  c.zero.stage = l.stage;
  c.pipeline.stages = l.pipe, c.pipeline.schedule = l.schedule;
  if (std::string(l.schedule) == "interleaved") c.pipeline.virtual_stages = 2;
  c.tensor_parallel.autotp_size = l.tensor, c.tensor_parallel.sequence_parallel = l.cut_rows;
  c.sequence_parallel_size = l.sequence;
  c.checkpointing.lean = l.recompute == std::string("lean");
  if (l.recompute == std::string("every")) c.checkpointing.interval = 1;
  return c;
}

// The fixture's only batch, divided over the micro-batches and places on the data axis.
BatchSource batch_of(const std::vector<int32_t>& tokens, const std::vector<int32_t>& targets,
                     const runtime::Engine& engine, comm::Communicator& world) {
  const MeshShape mesh = engine.mesh();
  return [&, mesh, place = mesh.place(world.rank()).data](int micro) {
    const int64_t first = (micro * mesh.data + place) * engine.samples_per_micro(),
                  n = engine.samples_per_micro() * kLength, at = first * kLength;
    auto part = [&](const std::vector<int32_t>& v) {
      return Tensor(const_cast<int32_t*>(v.data()) + at, DType::int32, {n}, MemoryKind::host);
    };
    return Batch{.input = part(tokens),
                 .targets = part(targets),
                 .valid_targets = n,
                 .position = {.first_sample = first}};
  };
}

std::vector<ParamSpec> params_of(const model::Model& model) {
  std::vector<ParamSpec> out;
  auto add = [&](const std::vector<UnitSpec>& units) {
    for (const UnitSpec& u : units) out.insert(out.end(), u.params.begin(), u.params.end());
  };
  for (const auto& layer : model.layers) add(layer->units());
  add(model.head->units());
  return out;
}

constexpr const char* kFixtures[] = {"gpt2_tiny",    "gpt2_dropout", "llama_tiny",   "qwen2_tiny",
                                     "llama_biased", "qwen3_tiny",   "mistral_tiny", "phi3_tiny",
                                     "gemma2_tiny",  "gemma3_tiny"};

// llama_biased has too few layers for a pipeline, the GPT-2s have two heads, and the two key/value heads of
// phi3_tiny are in one matrix with the queries. In the other models four ranks share them.
bool fits(const std::string& fixture, const Layout& l) {
  if (fixture == "llama_biased") return l.pipe == 1;
  return (!fixture.starts_with("gpt2") && fixture != "phi3_tiny") || l.tensor <= 2;
}

class Transformers : public ::testing::TestWithParam<Case> {};
std::vector<Case> cases() {
  std::vector<Case> all;
  for (const char* fixture : kFixtures)
    for (const Layout& layout : {Layout{1, 0},
                                 {2, 0},
                                 {2, 1},
                                 {2, 2},
                                 {2, 3},
                                 {1, 0, 2},
                                 {2, 2, 2, "gpipe"},
                                 {1, 1, 4, "zb-h1"},
                                 {2, 3, 2, "interleaved"},
                                 {1, 0, 1, "1f1b", 2},
                                 {1, 3, 1, "1f1b", 2, false},
                                 {2, 2, 1, "1f1b", 2},
                                 {2, 1, 2, "zb-h1", 2},
                                 {1, 0, 2, "interleaved", 2, false},
                                 {1, 1, 1, "1f1b", 4},
                                 {1, 3, 2, "gpipe", 4},
                                 {1, 1, 1, "1f1b", 1, true, 2},
                                 {2, 3, 1, "1f1b", 1, true, 2},
                                 {1, 0, 1, "1f1b", 1, true, 1, "lean"},
                                 {2, 2, 2, "zb-h1", 1, true, 1, "lean"},
                                 {1, 3, 2, "1f1b", 2, true, 1, "every"}})
      if (fits(fixture, layout)) all.push_back({fixture, layout});
  return all;
}
INSTANTIATE_TEST_SUITE_P(Layouts, Transformers, ::testing::ValuesIn(cases()), [](const auto& at) {
  const Layout& l = at.param.layout;
  return fmt::format("{}_data{}_stage{}_pipe{}_tensor{}{}_sequence{}{}", at.param.fixture, l.data, l.stage,
                     l.pipe, l.tensor, l.cut_rows ? "" : "_rows_whole", l.sequence, l.recompute);
});

TEST_P(Transformers, LossesNormsAndWeightsOfTwentyAdamWStepsAreEqual) {
  const Case& at = GetParam();
  comm::run_ranks(at.layout.ranks(), [&](comm::Communicator& world) {
    const Oracle oracle(at.fixture);
    const auto tokens = oracle.get<int32_t>("tokens"), targets = oracle.get<int32_t>("targets");
    const auto losses = oracle.get("losses"), norms = oracle.get("grad_norms");
    runtime::Engine engine(config(at.layout), oracle.model(), world, {});
    engine.set_parameters([&](const ParamSpec& p) { return oracle.parameter(p, ""); });
    for (size_t step = 0; step < size_t(kSteps); ++step) {
      const runtime::StepResult r = engine.train_batch(batch_of(tokens, targets, engine, world));
      EXPECT_NEAR(r.loss, losses[step], 1e-5 * losses[step]) << "step " << step;
      EXPECT_NEAR(r.grad_norm, norms[step], 1e-5 * norms[step]) << "step " << step;
      if (step != 0 && step + 1 != size_t(kSteps)) continue;
      for (const ParamSpec& p : params_of(engine.model())) {
        std::vector<float> got = engine.parameter(p.name),
                           want = oracle.parameter(p, step == 0 ? "step1." : "step20.");
        if (p.name.ends_with("attn.c_attn.bias")) without_key_biases(got), without_key_biases(want);
        EXPECT_LT(relative_distance(got, want), 1e-5) << p.name << " after step " << step + 1;
      }
    }
  });
}

// Plain gradient descent with a large rate: the weights move by the gradient, visible without cancellation.
TEST_P(Transformers, EveryGradientIsEqual) {
  const Case& at = GetParam();
  comm::run_ranks(at.layout.ranks(), [&](comm::Communicator& world) {
    const Oracle oracle(at.fixture);
    const auto tokens = oracle.get<int32_t>("tokens"), targets = oracle.get<int32_t>("targets");
    config::DsConfig c = config(at.layout);
    c.optimizer.type = config::OptimizerType::sgd, c.optimizer.weight_decay = 0, c.gradient_clipping = 0;
    const double rate = c.optimizer.lr = 4096;
    runtime::Engine engine(c, oracle.model(), world, {});
    engine.set_parameters([&](const ParamSpec& p) { return oracle.parameter(p, ""); });
    engine.train_batch(batch_of(tokens, targets, engine, world));
    for (const ParamSpec& p : params_of(engine.model())) {
      const std::vector<float> before = oracle.parameter(p, "");
      std::vector<float> gradient = engine.parameter(p.name);
      for (size_t i = 0; i < gradient.size(); ++i)
        gradient[i] = float((double(before[i]) - gradient[i]) / rate);
      EXPECT_LT(relative_distance(gradient, oracle.parameter(p, "grad.")), 1e-5) << p.name;
    }
  });
}

// Frozen parameters do not change, and the others have transformers' gradients.
TEST_P(Transformers, EveryGradientIsEqualWithFrozenParameters) {
  const Case& at = GetParam();
  comm::run_ranks(at.layout.ranks(), [&](comm::Communicator& world) {
    const Oracle oracle(at.fixture);
    const auto tokens = oracle.get<int32_t>("tokens"), targets = oracle.get<int32_t>("targets");
    config::DsConfig c = config(at.layout);
    c.freeze = {oracle.gpt2() ? "transformer.wte.*" : "model.embed_tokens.*", "*.mlp.*", "*.0.*norm*"};
    if (oracle.gpt2()) c.freeze.back() = "h.0.ln_1.bias";
    c.optimizer.type = config::OptimizerType::sgd, c.optimizer.weight_decay = 0, c.gradient_clipping = 0;
    const double rate = c.optimizer.lr = 4096;
    runtime::Engine engine(c, oracle.model(), world, {});
    engine.set_parameters([&](const ParamSpec& p) { return oracle.parameter(p, ""); });
    engine.train_batch(batch_of(tokens, targets, engine, world));
    const config::FreezeRule rule(c.freeze, "transformer.");
    for (const ParamSpec& p : params_of(engine.model())) {
      const std::vector<float> before = oracle.parameter(p, "");
      std::vector<float> gradient = engine.parameter(p.name);
      if (rule.applies_to(p.name)) {
        EXPECT_EQ(gradient, before) << p.name;
        continue;
      }
      for (size_t i = 0; i < gradient.size(); ++i)
        gradient[i] = float((double(before[i]) - gradient[i]) / rate);
      EXPECT_LT(relative_distance(gradient, oracle.parameter(p, "grad.")), 1e-5) << p.name;
    }
  });
}

TEST(TransformersPrediction, LogitsAreEqual) {
  for (const char* fixture : kFixtures)
    for (const Layout& l : {Layout{}, Layout{1, 0, 1, "1f1b", 2}, Layout{1, 3, 2, "1f1b", 2},
                            Layout{1, 1, 1, "1f1b", 4, false}})
      comm::run_ranks(l.ranks(), [&](comm::Communicator& world) {
        if (!fits(fixture, l)) return;
        const Oracle oracle(fixture);
        const auto tokens = oracle.get<int32_t>("tokens"), targets = oracle.get<int32_t>("targets");
        config::DsConfig c = config(l);
        c.train_micro_batch_size_per_gpu = kRows, c.gradient_accumulation_steps = 1;
        runtime::Engine engine(c, oracle.model(), world, {});
        engine.set_parameters([&](const ParamSpec& p) { return oracle.parameter(p, ""); });
        EXPECT_LT(relative_distance(engine.predict(batch_of(tokens, targets, engine, world)(0)),
                                    oracle.get("logits")),
                  1e-5)
            << fixture << " tensor " << l.tensor;
      });
}

// In each group of four targets the first is the top class of the PyTorch logits, the second the next one,
// the third has no loss, and the fourth is the fixture's.
TEST(TransformersPrediction, HitsAreThoseOfPyTorchsLogits) {
  for (const char* fixture : kFixtures) {
    const Oracle oracle(fixture);
    const auto tokens = oracle.get<int32_t>("tokens");
    auto targets = oracle.get<int32_t>("targets");
    const auto logits = oracle.get("logits");
    const auto vocab = int64_t(logits.size() / targets.size());
    int64_t hits = 0;
    for (size_t i = 0; i < targets.size(); ++i) {
      std::vector<int32_t> order(size_t(vocab), 0);
      std::iota(order.begin(), order.end(), 0);
      const float* row = logits.data() + i * size_t(vocab);
      std::partial_sort(order.begin(), order.begin() + 2, order.end(),
                        [&](int32_t a, int32_t b) { return row[a] > row[b]; });
      ASSERT_GT(row[order[0]] - row[order[1]], 1e-4f) << fixture << ": too close to tell";
      if (i % 4 < 2) targets[i] = order[i % 4];
      if (i % 4 == 2) targets[i] = kIgnoredTarget;
      hits += targets[i] == order[0];
    }
    for (const Layout& l : {Layout{}, Layout{2, 3}, Layout{2, 1, 2}, Layout{1, 0, 1, "1f1b", 2},
                            Layout{1, 1, 1, "1f1b", 4, false}})
      comm::run_ranks(l.ranks(), [&](comm::Communicator& world) {
        if (!fits(fixture, l)) return;
        const config::DsConfig c = config(l);
        runtime::Engine engine(c, oracle.model(), world, {});
        engine.set_parameters([&](const ParamSpec& p) { return oracle.parameter(p, ""); });
        const runtime::Evaluation seen =
            engine.evaluate(batch_of(tokens, targets, engine, world), int(c.gradient_accumulation_steps));
        EXPECT_EQ(seen.hits, hits) << fixture << " data " << l.data << " pipe " << l.pipe << " tensor "
                                   << l.tensor;
      });
  }
}

}  // namespace
}  // namespace cleave::testing
