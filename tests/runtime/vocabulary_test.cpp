// A vocabulary with a padded table (TensorAxis::padded_part), through the engine: against double precision,
// against a table without padding, in every layout, and through checkpoints.
#include <cmath>

#include "kernels/embedding.h"
#include "kernels/loss.h"
#include "model/linear.h"
#include "tests/runtime/cut_models.h"
#include "tests/scratch.h"

namespace cleave::testing {
namespace {

constexpr int64_t kTokensKnown = 4100, kWidth = 4;
static_assert(kTokensKnown >= tensor_parallel::TensorAxis::kPaddedFrom &&
              kTokensKnown % tensor_parallel::TensorAxis::kTile != 0);

// On every visit of a layer: rows after the real ones are zero in everything the store provides and receives.
void expect_zero_behind(const Tensor& table, int64_t real, const char* what, Stream& stream) {
  if (table.dim(0) <= real) return;
  const Tensor padding = table.rows({real, table.dim(0)});
  stream.enqueue([padding, what] {
    const std::byte* bytes = static_cast<const std::byte*>(padding.raw());
    for (int64_t i = 0; i < padding.bytes(); ++i)
      CHECK(bytes[i] == std::byte{0}, "{}: byte {} of the padding is not zero", what, i);
  });
}

// x = table[token]: the smallest model with a tied head.
class Table final : public model::Layer {
 public:
  Table(const tensor_parallel::TensorAxis& axis, bool padded, DType type)
      : axis_(axis), padded_(padded), type_(type) {}
  static ParamSpec parameter(const tensor_parallel::TensorAxis& axis, bool padded) {
    const ParamSpec whole{"table.weight", {kTokensKnown, kWidth}, {Init::Kind::normal, 0.7f}, true};
    return padded ? axis.cut_padded(whole, 0) : whole;
  }
  std::vector<UnitSpec> units() const override { return {{"table", {parameter(axis_, padded_)}}}; }
  model::TensorSpec output(const model::TensorSpec& in) const override {
    return {type_, {axis_.local_rows(in.shape.numel()), kWidth}};
  }
  void forward(const model::ForwardArgs& a) const override {
    expect_zero_behind(a.params[0], axis_.padded_part(kTokensKnown).real.size(), "weights", a.stream);
    const Tensor partial = axis_.all_rows_of(a.y, a.scratch);
    kernels::launch(
        kernels::EmbeddingForward{.y = partial, .tokens = a.x, .wte = a.params[0], .part = part()}, a.stream);
    axis_.sum(a.y, partial, a.stream, "table");
  }
  void backward(const model::BackwardArgs& a) const override {
    const Tensor dy = axis_.all_rows_of(a.dy, a.scratch);
    axis_.gather(dy, a.dy, a.stream, "table");
    kernels::launch(kernels::EmbeddingBackward{.dwte = a.grads[0].tensor,
                                               .dy = dy,
                                               .tokens = a.x,
                                               .part = part(),
                                               .accumulate_wte = a.grads[0].accumulate()},
                    a.stream);
    expect_zero_behind(a.grads[0].tensor, axis_.padded_part(kTokensKnown).real.size(), "gradient", a.stream);
  }

 private:
  kernels::VocabPart part() const {
    return {axis_.padded_part(kTokensKnown).size * axis_.rank(), kTokensKnown};
  }

  tensor_parallel::TensorAxis axis_;
  bool padded_;
  DType type_;
};

// The head without padding, for a rank with the whole vocabulary.
class PlainHead final : public model::Head {
 public:
  std::vector<UnitSpec> units() const override { return {{"table", {Table::parameter({}, false)}}}; }
  void run(const model::HeadArgs& a) const override {
    const model::Linear linear{kWidth, kTokensKnown, a.params[0]};
    const Tensor z = a.scratch.take(DType::fp32, {a.x.dim(0), kTokensKnown});
    linear.forward(z, a.x, a.stream);
    kernels::launch(kernels::CrossEntropy{.logits = z,
                                          .losses = a.losses,
                                          .targets = a.targets,
                                          .vocab = kTokensKnown,
                                          .scale = a.grads.empty() ? 0 : a.scale},
                    a.stream);
    if (!a.grads.empty()) model::Linear(linear).backward(a.dx, z, a.x, a.grads[0], nullptr, a.stream);
  }
  void logits(Tensor out, Tensor x, Range rows, std::span<const Tensor> params, Arena&,
              Stream& stream) const override {
    model::Linear{kWidth, kTokensKnown, params[0]}.forward(out, x.rows(rows), stream);
  }
  int64_t classes() const override { return kTokensKnown; }
};

runtime::ModelFactory bigrams(bool padded, DType type = DType::fp32) {
  return [=](const model::Axes& axes) {
    model::Model m;
    m.name = "bigrams", m.dtype = type;
    m.layers.push_back(std::make_unique<Table>(axes.tensor, padded, type));
    m.layers.push_back(std::make_unique<Idle>());
    if (padded)
      m.head = std::make_unique<model::ClassifierHead>(model::ClassifierHead::Config{.unit = "table",
                                                                                     .weight = "table.weight",
                                                                                     .classes = kTokensKnown,
                                                                                     .width = kWidth,
                                                                                     .init_scale = 0.7f,
                                                                                     .axis = axes.tensor});
    else
      m.head = std::make_unique<PlainHead>();
    m.rows_per_sample = kTokens;
    m.sample = {DType::int32, {kTokens}};
    return m;
  };
}

struct TrainedOnce {
  Training training;
  std::vector<float> logits;
  double evaluated = 0;
};

TrainedOnce run_engine(const Layout& l, config::DsConfig c, const runtime::ModelFactory& model, Range steps,
                       const std::string& load = "", const std::string& save = "") {
  TrainedOnce out;
  comm::run_ranks(l.ranks(), [&](comm::Communicator& world) {
    runtime::Engine engine(c, model, world, {});
    if (!load.empty()) engine.load_checkpoint(load);
    Tokens tokens(c.train_micro_batch_size_per_gpu, kTokens, kTokensKnown);
    const int place = engine.mesh().place(world.rank()).data;
    TrainedOnce mine;
    for (int64_t s = steps.begin; s < steps.end; ++s)
      mine.training.steps.push_back(engine.train_batch(source(tokens, c, s, place, l.data)));
    mine.training.weights = weights_of(engine);
    mine.evaluated = engine.evaluate(source(tokens, c, 9, place, l.data), 4 / l.data).loss;
    mine.logits = engine.predict(tokens.at(3, 0));
    if (!save.empty()) engine.save_checkpoint(save, "saved");
    EXPECT_EQ(engine.memory_planned(), engine.memory_peak()) << l.text();
    EXPECT_EQ(engine.params(), kTokensKnown * kWidth + 3) << "padding does not exist in the model";
    if (world.rank() == 0) out = std::move(mine);
  });
  return out;
}

// One step of gradient descent on the table in double precision: the mean loss over all tokens, the norm of
// its gradient, and the table after the step.
struct Descent {
  double loss = 0, norm = 0;
  std::vector<double> table;
};
Descent descend(const std::vector<float>& from, int samples, double lr) {
  Descent d{.table = {from.begin(), from.end()}};
  std::vector<double> gradient(d.table.size(), 0.0);
  Tokens tokens(samples, kTokens, kTokensKnown);
  const Batch batch = tokens.at(0, 0);
  const double rows = double(samples * kTokens);
  for (int64_t r = 0; r < samples * kTokens; ++r) {
    const auto token = size_t(batch.input.as<int32_t>()[r]), target = size_t(batch.targets.as<int32_t>()[r]);
    std::vector<double> z(size_t(kTokensKnown), 0.0), dx(size_t(kWidth), 0.0);
    double sum = 0;
    for (size_t i = 0; i < z.size(); ++i) {
      for (size_t k = 0; k < size_t(kWidth); ++k)
        z[i] += d.table[token * kWidth + k] * d.table[i * kWidth + k];
      sum += std::exp(z[i]);
    }
    d.loss += (std::log(sum) - z[target]) / rows;
    for (size_t i = 0; i < z.size(); ++i) {
      const double g = (std::exp(z[i]) / sum - (i == target)) / rows;
      for (size_t k = 0; k < size_t(kWidth); ++k) {
        gradient[i * kWidth + k] += g * d.table[token * kWidth + k];
        dx[k] += g * d.table[i * kWidth + k];
      }
    }
    for (size_t k = 0; k < size_t(kWidth); ++k) gradient[token * kWidth + k] += dx[k];
  }
  for (size_t i = 0; i < gradient.size(); ++i) d.norm += gradient[i] * gradient[i];
  d.norm = std::sqrt(d.norm);
  for (size_t i = 0; i < gradient.size(); ++i) d.table[i] -= lr * gradient[i];
  return d;
}

const Layout kLayouts[] = {{1, 1, 1, 0}, {1, 2, 1, 1}, {1, 2, 1, 2},
                           {1, 3, 1, 3}, {1, 1, 2, 0}, {1, 1, 4, 3},
                           {2, 1, 1, 0}, {2, 2, 2, 3}, {1, 1, 4, 1, "1f1b", false, false}};

TEST(PaddedVocabulary, GivesTheLossAndGradientOfDoublePrecisionInEveryLayout) {
  for (const Layout& l : kLayouts) {
    if (12 % l.data != 0) continue;
    config::DsConfig c = config_of(l, 1);
    c.train_micro_batch_size_per_gpu = 12 / l.data, c.train_batch_size = 12,
    c.gradient_accumulation_steps = 1;
    c.optimizer.type = config::OptimizerType::sgd, c.optimizer.lr = 100, c.optimizer.weight_decay = 0;
    c.gradient_clipping = 0;
    const TrainedOnce before = run_engine(l, c, bigrams(true), {0, 0}),
                      after = run_engine(l, c, bigrams(true), {0, 1});
    const std::vector<float>& start = before.training.weights.at("table.weight");
    const std::vector<float>& got = after.training.weights.at("table.weight");
    ASSERT_EQ(start.size(), size_t(kTokensKnown * kWidth));
    const Descent want = descend(start, 12, c.optimizer.lr);
    EXPECT_NEAR(after.training.steps[0].loss, want.loss, 2e-6 * want.loss) << l.text();
    EXPECT_NEAR(after.training.steps[0].grad_norm, want.norm, 2e-6 * want.norm) << l.text();
    for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want.table[i], 3e-6) << l.text() << " " << i;
    ASSERT_EQ(before.logits.size(), size_t(c.train_micro_batch_size_per_gpu * kTokens * kTokensKnown));
  }
}

// Equal bits where a vocabulary without padding runs the same sums: on one rank in fp32.
TEST(PaddedVocabulary, GivesTheNumbersOfATableWithoutPadding) {
  for (const config::OptimizerType type :
       {config::OptimizerType::adamw, config::OptimizerType::lamb, config::OptimizerType::lion,
        config::OptimizerType::adagrad, config::OptimizerType::sgd}) {
    config::DsConfig c = config_of({}, 2);
    c.optimizer.type = type;
    const TrainedOnce padded = run_engine({}, c, bigrams(true), {0, 4}),
                      plain = run_engine({}, c, bigrams(false), {0, 4});
    expect_close(padded.training, plain.training, 2e-6, std::string(name_of(type)));
    EXPECT_NEAR(padded.evaluated, plain.evaluated, 2e-6 * plain.evaluated);
    ASSERT_EQ(padded.logits.size(), plain.logits.size());
    for (size_t i = 0; i < plain.logits.size(); ++i) ASSERT_NEAR(padded.logits[i], plain.logits[i], 2e-5);
  }
}

// State off the device, 16-bit weights with fp32 masters, integer sums: the layer checks the padding on every
// visit.
TEST(PaddedVocabulary, StaysZeroInEveryHomeAndType) {
  const Scratch scratch;
  for (const auto& [precision, type] :
       {std::pair{config::Precision::bf16, DType::bf16}, {config::Precision::fp16, DType::fp16}})
    for (const config::OffloadDevice home :
         {config::OffloadDevice::none, config::OffloadDevice::cpu, config::OffloadDevice::nvme})
      for (const Layout& l : {Layout{1, 2, 1, 3}, Layout{1, 2, 2, 3}}) {
        config::DsConfig c = config_of(l, 2);
        c.precision = precision;
        c.fp16.enabled = precision == config::Precision::fp16, c.fp16.loss_scale = 64;
        c.zero.offload_optimizer.device = c.zero.offload_param.device = home;
        c.zero.offload_optimizer.nvme_path = c.zero.offload_param.nvme_path = scratch.folder().string();
        const TrainedOnce got = run_engine(l, c, bigrams(true, type), {0, 3});
        EXPECT_LT(got.training.steps[2].loss, std::log(double(kTokensKnown)) + 2);
        EXPECT_TRUE(std::isfinite(got.training.steps[2].grad_norm));
      }
  config::DsConfig exact = config_of({1, 2, 2, 3}, 2);
  exact.exact_sums = true;
  run_engine({1, 2, 2, 3}, exact, bigrams(true), {0, 3});
}

// A checkpoint holds only real rows: one saved without padding can be continued with it, and vice versa, and
// over any number of tensor ranks.
TEST(PaddedVocabulary, IsNotInCheckpoints) {
  const auto config = [](const Layout& l) { return config_of(l, 2); };
  const TrainedOnce whole = run_engine({}, config({}), bigrams(false), {0, 6});
  const Layout one{};
  std::vector<std::pair<Layout, bool>> ways{{one, false}};
  for (const Layout& l :
       {Layout{1, 1, 1, 0}, Layout{1, 1, 2, 3}, Layout{1, 1, 3, 1, "1f1b", false, false}, Layout{2, 1, 4, 2}})
    ways.push_back({l, true});
  for (const auto& [from, from_padded] : ways) {
    const Scratch scratch;
    const TrainedOnce saved =
        run_engine(from, config(from), bigrams(from_padded), {0, 3}, "", scratch.folder().string());
    for (const auto& [to, to_padded] : ways) {
      const std::string what = fmt::format("{} {} to {} {}", from.text(), from_padded, to.text(), to_padded);
      const TrainedOnce read =
          run_engine(to, config(to), bigrams(to_padded), {3, 3}, scratch.folder().string());
      EXPECT_EQ(read.training.weights, saved.training.weights) << what;
      const TrainedOnce got =
          run_engine(to, config(to), bigrams(to_padded), {3, 6}, scratch.folder().string());
      for (size_t s = 0; s < 3; ++s)
        EXPECT_NEAR(got.training.steps[s].loss, whole.training.steps[3 + s].loss,
                    3e-6 * whole.training.steps[3 + s].loss)
            << what;
    }
  }
}

// A transformer with a padded table, tied and untied: layouts of the same axes agree bit by bit, and all of
// them with one rank.
TEST(PaddedVocabulary, OfATransformerIsTheSameInEveryLayout) {
  for (const bool tied : {false, true}) {
    const runtime::ModelFactory model = [=](const model::Axes& axes) {
      return model::make_model(model::kLlama,
                               {.vocab = kTokensKnown,
                                .positions = kTokens,
                                .width = 16,
                                .layers = 2,
                                .heads = 4,
                                .kv_heads = 4,
                                .head_dim = 4,
                                .mlp_width = 32,
                                .tied = tied},
                               DType::fp32, kTokens, "llama", axes);
    };
    const auto trained = [&](const Layout& l) { return train_on_all(l, config_of(l, 4 / l.data), model, 3); };
    const Training want = trained({});
    ASSERT_EQ(want.weights.at(tied ? "model.embed_tokens.weight" : "lm_head.weight").size(),
              size_t(kTokensKnown * 16));
    for (const Layout& l :
         {Layout{1, 2, 1, 2}, Layout{1, 4, 1, 3}, Layout{1, 1, 4, 0}, Layout{2, 1, 2, 3}, Layout{2, 2, 1, 1}})
      expect_close(trained(l), want, 1e-5, l.text());
    expect_same_bits(trained({1, 2, 1, 0}), trained({1, 2, 1, 1}), "stages");
    expect_same_bits(trained({1, 2, 1, 2}), trained({1, 2, 1, 3}), "stages");
  }
}

}  // namespace
}  // namespace cleave::testing
