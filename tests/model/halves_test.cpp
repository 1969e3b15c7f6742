// Blocks and their halves alone: gradients against finite differences, both parts of a split backward,
// savings of a lean block, and a half with separate units.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "model/attention_half.h"
#include "model/block.h"
#include "model/check_gradients.h"
#include "model/family.h"
#include "model/mlp_half.h"
#include "tests/scratch.h"

namespace cleave::model {
namespace {

constexpr int64_t kSeq = 5, kRows = 2 * kSeq, kWidth = 6;
using Values = std::vector<float>;

Values numbers(int64_t count, const std::string& name, float scale) {
  const Philox random{7, hash_name(name)};
  Values out;
  for (int64_t i = 0; i < count; ++i) out.push_back(scale * float(random.normal(uint64_t(i))));
  return out;
}

// Mode of a layer's backward.
struct Way {
  bool split = false, lean = false;
};

// Layer alone on one rank, with parameters that depend on their names and are contiguous as in a unit.
class Alone {
 public:
  explicit Alone(const Layer& layer, std::vector<Tensor> constants = {})
      : layer_(layer),
        constants_(std::move(constants)),
        x_(numbers(kRows * kWidth, "x", 1)),
        dy_(numbers(kRows * kWidth, "dy", 1)) {
    for (const UnitSpec& unit : layer.units())
      for (const ParamSpec& p : unit.params) {
        specs_.push_back(p), frozen_.push_back(unit.frozen);
        const float mean = p.name.find("norm") != std::string::npos && p.name.ends_with(".weight") ? 1 : 0;
        for (const float v : numbers(p.numel(), p.name, 0.4f)) params_.push_back(mean + v);
      }
  }
  std::vector<std::string> names() const {
    std::vector<std::string> out{"x"};
    for (const ParamSpec& p : specs_) out.push_back(p.name);
    return out;
  }
  // Returns the values of a parameter, or of the input "x".
  std::span<float> values(const std::string& name) {
    return name == "x" ? std::span(x_) : part(params_, name);
  }

  // Returns the scalar for the gradients of backward(): sum(y * dy), summed in double precision.
  double forward() {
    Saved saved;
    Arena keep(keep_);
    const Values y = forward(saved, keep, false);
    double sum = 0;
    for (size_t i = 0; i < y.size(); ++i) sum += double(y[i]) * double(dy_[i]);
    return sum;
  }

  std::map<std::string, Values> backward(Way way) {
    Saved saved, for_weight;
    Arena keep(keep_), until_weight(until_weight_);
    forward(saved, keep, way.lean);
    Values dx(x_.size()), flat(params_.size(), NAN);
    const std::vector<Tensor> params = views(params_), slots = views(flat);
    const auto written = std::make_unique<bool[]>(slots.size());
    std::vector<ParamGradient> grads;
    for (size_t i = 0; i < slots.size(); ++i)
      grads.push_back(frozen_[i] ? ParamGradient{} : ParamGradient{slots[i], &written[i]});
    const auto run = [&](BackwardPart part) {
      Arena scratch(scratch_);
      const bool weights = part != BackwardPart::input, input = part != BackwardPart::weight;
      layer_.backward({.dx = input ? rows(dx) : Tensor(),
                       .dy = rows(dy_),
                       .x = rows(x_),
                       .params = input ? std::span(params) : std::span<const Tensor>(),
                       .grads = weights ? std::span(grads) : std::span<ParamGradient>(),
                       .saved = saved,
                       .scratch = scratch,
                       .position = {},
                       .stream = stream_,
                       .part = part,
                       .for_weight = way.split ? &for_weight : nullptr,
                       .keep = way.split ? &until_weight : nullptr,
                       .lean = way.lean,
                       .constants = constants_});
    };
    if (way.split)
      run(BackwardPart::input), run(BackwardPart::weight);
    else
      run(BackwardPart::both);
    kept_bytes = keep.peak_bytes();
    std::map<std::string, Values> out{{"x", dx}};
    for (const ParamSpec& p : specs_) {
      const auto gradient = part(flat, p.name);
      out[p.name] = Values(gradient.begin(), gradient.end());
    }
    return out;
  }

  int64_t kept_bytes = 0;  // by the last backward's forward

 private:
  static Tensor rows(Values& v) { return {v.data(), DType::fp32, {kRows, kWidth}}; }
  std::vector<Tensor> views(Values& flat) const {
    std::vector<Tensor> out;
    float* at = flat.data();
    for (const ParamSpec& p : specs_) {
      Shape shape;
      for (const int64_t d : p.shape) shape.dims[size_t(shape.rank++)] = d;
      out.emplace_back(at, DType::fp32, shape);
      at += p.numel();
    }
    return out;
  }
  std::span<float> part(Values& flat, const std::string& name) const {
    size_t at = 0;
    for (const ParamSpec& p : specs_) {
      if (p.name == name) return std::span(flat).subspan(at, size_t(p.numel()));
      at += size_t(p.numel());
    }
    ADD_FAILURE() << "no parameter " << name;
    return {};
  }
  Values forward(Saved& saved, Arena& keep, bool lean) {
    Values y(x_.size());
    Arena scratch(scratch_);
    const std::vector<Tensor> params = views(params_);
    layer_.forward({.y = rows(y),
                    .x = rows(x_),
                    .params = params,
                    .saved = saved,
                    .keep = keep,
                    .scratch = scratch,
                    .position = {},
                    .stream = stream_,
                    .lean = lean,
                    .constants = constants_});
    return y;
  }

  static constexpr int64_t kBytes = 1 << 18;
  const Layer& layer_;
  std::vector<Tensor> constants_;
  std::vector<ParamSpec> specs_;
  std::vector<bool> frozen_;
  Values x_, dy_, params_;
  Stream stream_;
  std::vector<std::byte> memory_ = std::vector<std::byte>(3 * kBytes);
  Tensor keep_{memory_.data(), DType::uint8, {kBytes}},
      scratch_{memory_.data() + kBytes, DType::uint8, {kBytes}},
      until_weight_{memory_.data() + 2 * kBytes, DType::uint8, {kBytes}};
};

AttentionHalf::Config attention_config() {
  return {.name = "b",
          .width = kWidth,
          .seq = kSeq,
          .heads = 4,
          .kv_heads = 2,
          .head_dim = 4,
          .qkv = {"b.q", "b.k", "b.v"},
          .out = "b.o",
          .init = {},
          .out_init = {}};
}

MlpHalf::Config mlp_config(const std::string& unit = "b") {
  return {.name = unit,
          .width = kWidth,
          .hidden = 8,
          .up = {unit + ".up"},
          .down = unit + ".down",
          .init = {},
          .down_init = {}};
}

struct Norms {
  Norm::Kind kind = Norm::Kind::rms;
  bool before = true, after = false;
  float offset = 0;
};

std::unique_ptr<Block> block_of(std::unique_ptr<Half> attention, std::unique_ptr<Half> mlp,
                                const Norms& norms = {}) {
  const auto norm = [&](bool there, const char* name) {
    return there ? std::optional(Norm(norms.kind, name, kWidth, 1e-5f, norms.offset)) : std::nullopt;
  };
  return std::make_unique<Block>(
      "b",
      Block::Branch{"attn", norm(norms.before, "b.norm1"), std::move(attention),
                    norm(norms.after, "b.norm1_after")},
      Block::Branch{"mlp", norm(norms.before, "b.norm2"), std::move(mlp), norm(norms.after, "b.norm2_after")},
      RowDropout{});
}

// Covers every choice of a family in a minimal number of blocks.
struct Choice {
  const char* name;
  bool joined, biases, rotary, head_norms, gated;
  Norms norms;
  float cap = 0;
  friend void PrintTo(const Choice& choice, std::ostream* out) { *out << choice.name; }
};

std::unique_ptr<Block> make_block(const Choice& choice) {
  AttentionHalf::Config attention = attention_config();
  attention.norm_offset = choice.norms.offset, attention.cap = choice.cap;
  if (choice.cap > 0) attention.scale = 0.4f, attention.window = 3;
  if (choice.joined) attention.qkv = {"b.qkv"};
  attention.qkv_bias = attention.out_bias = choice.biases, attention.rotary = choice.rotary;
  if (choice.head_norms) attention.query_norm = "b.q_norm", attention.key_norm = "b.k_norm";
  MlpHalf::Config mlp = mlp_config();
  mlp.up_bias = mlp.down_bias = choice.biases, mlp.gated = choice.gated;
  if (choice.gated && !choice.joined) mlp.up = {"b.gate", "b.up"};
  if (choice.cap > 0) mlp.activation = kernels::Activation::gelu_tanh;
  return block_of(std::make_unique<AttentionHalf>(attention, Axes()),
                  std::make_unique<MlpHalf>(mlp, tensor_parallel::TensorAxis()), choice.norms);
}

class Blocks : public ::testing::TestWithParam<Choice> {};
INSTANTIATE_TEST_SUITE_P(
    Of, Blocks,
    ::testing::Values(
        Choice{"Gpt2", true, true, false, false, false, {Norm::Kind::layer}},
        Choice{"Qwen2", false, true, true, false, true, {}},
        Choice{"Qwen3", false, false, true, true, true, {}},
        Choice{"Phi3", true, false, true, false, true, {}},
        Choice{"Gemma2", false, false, true, false, true, {Norm::Kind::rms, true, true, 1}, 0.8f},
        Choice{"Gemma3", false, false, true, true, true, {Norm::Kind::rms, true, true, 1}},
        Choice{"NormsBehindAlone", false, true, false, false, false, {Norm::Kind::layer, false, true}},
        Choice{"NoNorms", false, true, false, false, false, {Norm::Kind::rms, false, false}}),
    [](const auto& at) { return at.param.name; });

TEST_P(Blocks, GradientsAreTheFiniteDifferencesOfTheForward) {
  const auto block = make_block(GetParam());
  const auto table = rope_table(kSeq, rope_frequencies(4, 10000, {}));
  const std::vector<Tensor> constants = table->tensors();
  check_gradients(*block, {DType::fp32, {kRows, kWidth}}, {.constants = constants});
}

std::unique_ptr<Block> make_block_with_adapters(const Choice& choice) {
  auto block = make_block(choice);
  std::vector<std::string> linears;
  block->attach(config::AdapterRule({config::AdapterRule::kAllLinear}, {.rank = 2, .scale = 0.5f}), linears);
  return block;
}

TEST_P(Blocks, GradientsAreTheFiniteDifferencesOfTheForwardWithAdapters) {
  const auto block = make_block_with_adapters(GetParam());
  const auto table = rope_table(kSeq, rope_frequencies(4, 10000, {}));
  const std::vector<Tensor> constants = table->tensors();
  // The path through adapters is more nonlinear than that through weights.
  const GradientCheck how{.constants = constants, .step = 1.0f / 512};
  check_gradients(*block, {DType::fp32, {kRows, kWidth}}, how);
  block->freeze(config::FreezeRule({"*"}));
  for (const UnitSpec& unit : block->units()) EXPECT_EQ(unit.frozen, unit.name != "b.lora") << unit.name;
  check_gradients(*block, {DType::fp32, {kRows, kWidth}}, how);
}

TEST_P(Blocks, GradientsHaveTheSameBitsSplitAndLeanWithAdapters) {
  const auto block = make_block_with_adapters(GetParam());
  const auto table = rope_table(kSeq, rope_frequencies(4, 10000, {}));
  Alone alone(*block, table->tensors());
  const auto want = alone.backward({});
  for (const Way way : {Way{.split = true}, {.lean = true}, {.split = true, .lean = true}})
    EXPECT_EQ(alone.backward(way), want) << way.split << way.lean;
}

TEST_P(Blocks, GradientsHaveTheSameBitsSplitAndLean) {
  const auto block = make_block(GetParam());
  const auto table = rope_table(kSeq, rope_frequencies(4, 10000, {}));
  Alone alone(*block, table->tensors());
  const auto want = alone.backward({});
  const int64_t whole = alone.kept_bytes;
  EXPECT_EQ(alone.backward({.split = true}), want);
  EXPECT_EQ(alone.kept_bytes, whole);
  for (const bool split : {false, true}) {
    EXPECT_EQ(alone.backward({.split = split, .lean = true}), want) << split;
    EXPECT_LT(alone.kept_bytes, whole);
  }
}

// Sum of two MLPs, each in a separate unit, like the parameters of a mixture of experts.
class TwoMlps final : public Half {
 public:
  explicit TwoMlps(bool first_is_frozen = false) : first_is_frozen_(first_is_frozen) {
    for (const char* unit : {"b.first", "b.second"})
      mlps_.emplace_back(mlp_config(unit), tensor_parallel::TensorAxis());
  }
  void declare(std::vector<DeclaredUnit>& units) override {
    for (size_t i = 0; i < mlps_.size(); ++i) {
      std::vector<DeclaredUnit> own{
          {.name = i == 0 ? "b.first" : "b.second", .frozen = i == 0 && first_is_frozen_}};
      mlps_[i].declare(own);
      units.push_back(own.front());
    }
  }
  double flops(int64_t) const override { return 0; }
  void forward(const ForwardArgs& a) const override {
    ForwardArgs second = a;
    second.y = a.scratch.take(a.y.dtype(), a.y.shape());
    mlps_[0].forward(a), mlps_[1].forward(second);
    kernels::launch(kernels::Add{.y = a.y, .a = a.y, .b = second.y}, a.stream);
  }
  void backward(const BackwardArgs& a) const override {
    BackwardArgs second = a;
    if (a.dx.defined()) second.dx = a.scratch.take(a.dx.dtype(), a.dx.shape());
    mlps_[0].backward(a), mlps_[1].backward(second);
    if (a.dx.defined()) kernels::launch(kernels::Add{.y = a.dx, .a = a.dx, .b = second.dx}, a.stream);
  }

 private:
  bool first_is_frozen_;
  std::vector<MlpHalf> mlps_;
};

std::vector<std::string> names_of(const Layer& layer, bool frozen) {
  std::vector<std::string> names;
  for (const UnitSpec& unit : layer.units())
    for (const ParamSpec& p : unit.params)
      if (unit.frozen == frozen) names.push_back(unit.name + ": " + p.name);
  return names;
}

// Frozen parameters form a separate unit; the gradients of the others and of the input keep the bits of a run
// with nothing frozen.
TEST_P(Blocks, WithFrozenPartsGiveTheOthersTheirGradients) {
  const auto table = rope_table(kSeq, rope_frequencies(4, 10000, {}));
  const auto whole = make_block(GetParam());
  const auto want = Alone(*whole, table->tensors()).backward({});
  const std::vector<std::vector<std::string>> rules{
      {"b.q", "b.q.*", "b.k.*", "b.v.*", "b.qkv.*", "b.o.*", "b.q_norm.*", "b.k_norm.*"},
      {"b.up.*", "b.gate.*", "b.down.*", "b.norm2*"},
      {"*.weight"},
      {"*norm*"},
      {"b.down.weight", "b.o.*"}};
  for (const auto& rule : rules)
    for (const Way way : {Way{}, Way{.split = true}, Way{.lean = true}, Way{true, true}}) {
      const auto block = make_block(GetParam());
      block->freeze(config::FreezeRule(rule));
      const std::vector<std::string> frozen = names_of(*block, true);
      const auto got = Alone(*block, table->tensors()).backward(way);
      for (const auto& [name, gradient] : want) {
        const bool is_frozen = std::any_of(frozen.begin(), frozen.end(),
                                           [&](const std::string& f) { return f.ends_with(": " + name); });
        if (is_frozen)
          for (const float g : got.at(name)) EXPECT_TRUE(std::isnan(g)) << name << " was written";
        else
          EXPECT_EQ(got.at(name), gradient) << name << " with frozen " << rule[0];
      }
    }
}

TEST(Halves, FrozenByNameAreUnitsOfTheirOwn) {
  const auto block = make_block({"Qwen2", false, true, true, false, true, {}});
  block->freeze(config::FreezeRule({"b.gate.*", "b.up.*", "b.down.*"}));
  EXPECT_EQ(
      names_of(*block, true),
      (std::vector<std::string>{"b.frozen: b.gate.weight", "b.frozen: b.up.weight", "b.frozen: b.gate.bias",
                                "b.frozen: b.up.bias", "b.frozen: b.down.weight", "b.frozen: b.down.bias"}));
  EXPECT_EQ(block->units()[0].name, "b");
  EXPECT_FALSE(block->units()[0].frozen);
  block->freeze(config::FreezeRule({"b.*"}));
  ASSERT_EQ(block->units().size(), 1u);
  EXPECT_EQ(block->units()[0].name, "b");
  EXPECT_TRUE(block->units()[0].frozen);
  EXPECT_TRUE(names_of(*block, false).empty());
  expect_error(Exit::usage, {"b.q.weight", "b.k.weight", "both or neither"},
               [&] { block->freeze(config::FreezeRule({"b.q.weight"})); });
}

TEST(Halves, MayHaveUnitsAfterTheBlocks) {
  const auto block =
      block_of(std::make_unique<AttentionHalf>(attention_config(), Axes()), std::make_unique<TwoMlps>());
  std::vector<std::string> names;
  for (const UnitSpec& unit : block->units()) {
    names.push_back(unit.name + ":");
    for (const ParamSpec& p : unit.params) names.push_back(p.name);
  }
  EXPECT_EQ(names, (std::vector<std::string>{"b:", "b.norm1.weight", "b.q.weight", "b.k.weight", "b.v.weight",
                                             "b.o.weight", "b.norm2.weight", "b.first:", "b.first.up.weight",
                                             "b.first.down.weight", "b.second:", "b.second.up.weight",
                                             "b.second.down.weight"}));
  // Equals one MLP with the middle columns of both.
  MlpHalf::Config both = mlp_config();
  both.hidden *= 2;
  const auto plain = block_of(std::make_unique<AttentionHalf>(attention_config(), Axes()),
                              std::make_unique<MlpHalf>(both, tensor_parallel::TensorAxis()));
  Alone apart(*block), together(*plain);
  for (const std::string& name : together.names())
    if (!name.starts_with("b.up") && !name.starts_with("b.down"))
      std::ranges::copy(apart.values(name), together.values(name).begin());
  const auto up = together.values("b.up.weight"), down = together.values("b.down.weight");
  std::ranges::copy(apart.values("b.first.up.weight"), up.begin());
  std::ranges::copy(apart.values("b.second.up.weight"), up.begin() + up.size() / 2);
  for (size_t i = 0; i < down.size(); ++i)
    down[i] = apart.values(i % 16 < 8 ? "b.first.down.weight" : "b.second.down.weight")[i / 16 * 8 + i % 8];
  const auto got = apart.backward({.split = true}), want = together.backward({});
  for (const char* name : {"x", "b.q.weight", "b.norm2.weight"})
    for (size_t i = 0; i < want.at(name).size(); ++i)
      EXPECT_NEAR(got.at(name)[i], want.at(name)[i], 1e-5) << name << " element " << i;
  for (size_t i = 0; i < want.at("b.up.weight").size(); ++i) {
    const size_t half = want.at("b.up.weight").size() / 2;
    EXPECT_NEAR(got.at(i < half ? "b.first.up.weight" : "b.second.up.weight")[i % half],
                want.at("b.up.weight")[i], 1e-5);
  }
}

TEST(Halves, LeaveOutTheGradientsOfAFrozenUnitAndNothingElse) {
  const auto make = [](bool frozen) {
    return block_of(std::make_unique<AttentionHalf>(attention_config(), Axes()),
                    std::make_unique<TwoMlps>(frozen));
  };
  const auto trained = make(false), frozen = make(true);
  const auto want = Alone(*trained).backward({});
  for (const bool split : {false, true})
    for (const auto& [name, got] : Alone(*frozen).backward({.split = split})) {
      if (!name.starts_with("b.first."))
        EXPECT_EQ(got, want.at(name)) << name;
      else
        for (const float v : got) EXPECT_TRUE(std::isnan(v)) << name << " was written";
    }
}

TEST(Halves, FindKeptStateByTypeAndRejectKeepingTwice) {
  struct Kept {
    int value;
  };
  Saved saved;
  int first = 0, second = 0;
  saved.put(&first, Kept{1}), saved.put(&second, Kept{2}), saved.put(&first, 3.0);
  EXPECT_EQ(saved.get<Kept>(&first).value, 1);
  EXPECT_EQ(saved.get<Kept>(&second).value, 2);
  EXPECT_EQ(saved.get<double>(&first), 3.0);
  EXPECT_THROW(saved.put(&first, Kept{4}), Error);
  EXPECT_THROW(saved.get<double>(&second), Error);
}

}  // namespace
}  // namespace cleave::model
