#include "model/gpt.h"

#include <cmath>

#include "kernels/attention.h"
#include "kernels/embedding.h"
#include "kernels/norm.h"
#include "model/classifier_head.h"
#include "model/linear.h"

namespace cleave {
namespace {

Philox dropout_stream(const Position& p, std::string_view where) {
  return {p.seed, hash_name(where) ^ (uint64_t(p.step) * 0x9E3779B97F4A7C15ull)};
}

class GptEmbedding final : public Layer {
 public:
  GptEmbedding(const GptConfig& c, int64_t seq, DType dtype) : c_(c), seq_(seq), dtype_(dtype) {}

  std::vector<UnitSpec> units() const override {
    const Init normal{Init::Kind::normal, 0.02f};
    return {{"wte", {{"wte.weight", {c_.vocab, c_.width}, normal, true}}},
            {"wpe", {{"wpe.weight", {c_.positions, c_.width}, normal, true}}}};
  }
  TensorSpec output(const TensorSpec& in) const override { return {dtype_, {in.shape.numel(), c_.width}}; }
  double flops(const TensorSpec&) const override { return 0; }  // rows are looked up

  void forward(const ForwardArgs& a) const override {
    launch(EmbeddingForward{.y = a.y, .tokens = a.x, .wte = a.params[0], .wpe = a.params[1], .seq = seq_},
           a.stream);
    if (a.train && c_.dropout > 0) drop(a.y, a.y, a.position, a.stream);
  }
  void backward(const BackwardArgs& a) const override {
    if (c_.dropout > 0) drop(a.dy, a.dy, a.position, a.stream);
    launch(EmbeddingBackward{.dwte = a.grads[0].tensor,
                             .dwpe = a.grads[1].tensor,
                             .dy = a.dy,
                             .tokens = a.x,
                             .seq = seq_,
                             .accumulate_wte = a.grads[0].accumulate(),
                             .accumulate_wpe = a.grads[1].accumulate()},
           a.stream);
  }

 private:
  void drop(Tensor y, Tensor x, const Position& p, Stream& s) const {
    launch(Dropout{.y = y,
                   .x = x,
                   .p = c_.dropout,
                   .philox = dropout_stream(p, "embedding"),
                   .offset = p.first_sample * seq_ * c_.width},
           s);
  }
  GptConfig c_;
  int64_t seq_;
  DType dtype_;
};

// x -> x + attention(norm(x)) -> that + mlp(norm(that)).
class GptBlock final : public Layer {
 public:
  GptBlock(const GptConfig& c, int64_t seq, int index)
      : c_(c), seq_(seq), name_(fmt::format("h.{}", index)) {}

  std::vector<UnitSpec> units() const override {
    const int64_t w = c_.width;
    const Init one{Init::Kind::ones, 0}, zero{}, normal{Init::Kind::normal, 0.02f};
    // Residual projections start smaller, as in the GPT-2 report: 0.02 / sqrt(2 * layers).
    const Init residual{Init::Kind::normal, 0.02f / std::sqrt(2.0f * float(c_.layers))};
    return {{name_,
             {{name_ + ".ln_1.weight", {w}, one, false},
              {name_ + ".ln_1.bias", {w}, zero, false},
              {name_ + ".attn.c_attn.weight", {3 * w, w}, normal, true},
              {name_ + ".attn.c_attn.bias", {3 * w}, zero, false},
              {name_ + ".attn.c_proj.weight", {w, w}, residual, true},
              {name_ + ".attn.c_proj.bias", {w}, zero, false},
              {name_ + ".ln_2.weight", {w}, one, false},
              {name_ + ".ln_2.bias", {w}, zero, false},
              {name_ + ".mlp.c_fc.weight", {4 * w, w}, normal, true},
              {name_ + ".mlp.c_fc.bias", {4 * w}, zero, false},
              {name_ + ".mlp.c_proj.weight", {w, 4 * w}, residual, true},
              {name_ + ".mlp.c_proj.bias", {w}, zero, false}}}};
  }
  TensorSpec output(const TensorSpec& in) const override { return in; }
  double flops(const TensorSpec& in) const override {
    return Layer::flops(in) + 6 * double(in.shape[0]) * double(seq_) * double(c_.width);  // causal attention
  }

  void forward(const ForwardArgs& a) const override {
    const int64_t rows = a.x.dim(0), w = c_.width;
    const DType t = a.x.dtype();
    const auto p = a.params;
    Activations s = keep(a.saved, a.keep, rows, t);
    launch(LayerNormForward{.y = s.norm1,
                            .sum = {},
                            .mean = s.mean1,
                            .rstd = s.rstd1,
                            .x = a.x,
                            .residual = {},
                            .weight = p[0],
                            .bias = p[1],
                            .eps = c_.norm_eps},
           a.stream);
    Linear{w, 3 * w, p[2], p[3]}.forward(s.qkv, s.norm1, a.stream);
    launch(AttentionForward{.y = s.attention,
                            .lse = s.lse,
                            .qkv = s.qkv,
                            .batch = rows / seq_,
                            .seq = seq_,
                            .heads = c_.heads,
                            .kv_heads = c_.heads,
                            .head_dim = w / c_.heads},
           a.stream);
    const Tensor branch = a.scratch.take(t, {rows, w});
    Linear{w, w, p[4], p[5]}.forward(branch, s.attention, a.stream);
    if (a.train) drop(branch, a.position, "attn", a.stream);
    launch(LayerNormForward{.y = s.norm2,
                            .sum = s.middle,
                            .mean = s.mean2,
                            .rstd = s.rstd2,
                            .x = branch,
                            .residual = a.x,
                            .weight = p[6],
                            .bias = p[7],
                            .eps = c_.norm_eps},
           a.stream);
    Linear{w, 4 * w, p[8], p[9]}.forward(s.hidden, s.norm2, a.stream);
    launch(ActivationForward{.y = s.active, .x = s.hidden, .kind = c_.activation}, a.stream);
    Linear{4 * w, w, p[10], p[11]}.forward(branch, s.active, a.stream);
    if (a.train) drop(branch, a.position, "mlp", a.stream);
    launch(Add{.y = a.y, .a = s.middle, .b = branch}, a.stream);
  }

  void backward(const BackwardArgs& a) const override {
    const int64_t rows = a.x.dim(0), w = c_.width;
    const DType t = a.x.dtype();
    const auto p = a.params;
    const auto g = a.grads;
    const Activations s = saved(a.saved);
    const Tensor narrow = a.scratch.take(t, {rows, w}), wide = a.scratch.take(t, {rows, 4 * w});
    const Tensor dmiddle = a.scratch.take(t, {rows, w}), dqkv = a.scratch.take(t, {rows, 3 * w});
    const Tensor dmlp = dropped(a.dy, a, "mlp");
    Linear{4 * w, w, p[10], p[11]}.backward(wide, dmlp, s.active, g[10], &g[11], a.stream);
    launch(ActivationBackward{.dx = wide, .dy = wide, .x = s.hidden, .kind = c_.activation}, a.stream);
    Linear{w, 4 * w, p[8], p[9]}.backward(narrow, wide, s.norm2, g[8], &g[9], a.stream);
    launch(LayerNormBackward{.dx = dmiddle,
                             .dweight = g[6].tensor,
                             .dbias = g[7].tensor,
                             .dy = narrow,
                             .x = s.middle,
                             .mean = s.mean2,
                             .rstd = s.rstd2,
                             .weight = p[6],
                             .dresidual = a.dy,
                             .accumulate_weight = g[6].accumulate(),
                             .accumulate_bias = g[7].accumulate()},
           a.stream);
    const Tensor dattn = dropped(dmiddle, a, "attn");
    Linear{w, w, p[4], p[5]}.backward(narrow, dattn, s.attention, g[4], &g[5], a.stream);
    launch(AttentionBackward{.dqkv = dqkv,
                             .dy = narrow,
                             .y = s.attention,
                             .lse = s.lse,
                             .qkv = s.qkv,
                             .batch = rows / seq_,
                             .seq = seq_,
                             .heads = c_.heads,
                             .kv_heads = c_.heads,
                             .head_dim = w / c_.heads},
           a.stream);
    Linear{w, 3 * w, p[2], p[3]}.backward(narrow, dqkv, s.norm1, g[2], &g[3], a.stream);
    launch(LayerNormBackward{.dx = a.dx,
                             .dweight = g[0].tensor,
                             .dbias = g[1].tensor,
                             .dy = narrow,
                             .x = a.x,
                             .mean = s.mean1,
                             .rstd = s.rstd1,
                             .weight = p[0],
                             .dresidual = dmiddle,
                             .accumulate_weight = g[0].accumulate(),
                             .accumulate_bias = g[1].accumulate()},
           a.stream);
  }

 private:
  struct Activations {
    Tensor mean1, rstd1, norm1, qkv, attention, lse, middle, mean2, rstd2, norm2, hidden, active;
  };

  Activations keep(Saved& s, Arena& arena, int64_t rows, DType t) const {
    const int64_t w = c_.width;
    Activations a;
    a.mean1 = s.keep(arena, DType::fp32, {rows});
    a.rstd1 = s.keep(arena, DType::fp32, {rows});
    a.norm1 = s.keep(arena, t, {rows, w});
    a.qkv = s.keep(arena, t, {rows, 3 * w});
    a.attention = s.keep(arena, t, {rows, w});
    a.lse = s.keep(arena, DType::fp32, {rows / seq_, c_.heads, seq_});
    a.middle = s.keep(arena, t, {rows, w});
    a.mean2 = s.keep(arena, DType::fp32, {rows});
    a.rstd2 = s.keep(arena, DType::fp32, {rows});
    a.norm2 = s.keep(arena, t, {rows, w});
    a.hidden = s.keep(arena, t, {rows, 4 * w});
    a.active = s.keep(arena, t, {rows, 4 * w});
    return a;
  }
  static Activations saved(const Saved& s) {
    return {s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7], s[8], s[9], s[10], s[11]};
  }

  Dropout dropout(Tensor y, Tensor x, const Position& p, const char* branch) const {
    return {.y = y,
            .x = x,
            .p = c_.dropout,
            .philox = dropout_stream(p, fmt::format("{}.{}", name_, branch)),
            .offset = p.first_sample * seq_ * c_.width};
  }
  void drop(Tensor x, const Position& p, const char* branch, Stream& s) const {
    if (c_.dropout > 0) launch(dropout(x, x, p, branch), s);
  }
  // The gradient through a branch's dropout; the residual keeps the undropped one, so this is a copy.
  Tensor dropped(Tensor dy, const BackwardArgs& a, const char* branch) const {
    if (c_.dropout == 0) return dy;
    const Tensor out = a.scratch.take(dy.dtype(), dy.shape());
    launch(dropout(out, dy, a.position, branch), a.stream);
    return out;
  }

  GptConfig c_;
  int64_t seq_;
  std::string name_;
};

class FinalNorm final : public Layer {
 public:
  explicit FinalNorm(const GptConfig& c) : c_(c) {}
  std::vector<UnitSpec> units() const override {
    return {
        {"ln_f",
         {{"ln_f.weight", {c_.width}, {Init::Kind::ones, 0}, false}, {"ln_f.bias", {c_.width}, {}, false}}}};
  }
  TensorSpec output(const TensorSpec& in) const override { return in; }
  void forward(const ForwardArgs& a) const override {
    const Tensor mean = a.saved.keep(a.keep, DType::fp32, {a.x.dim(0)});
    const Tensor rstd = a.saved.keep(a.keep, DType::fp32, {a.x.dim(0)});
    launch(LayerNormForward{.y = a.y,
                            .sum = {},
                            .mean = mean,
                            .rstd = rstd,
                            .x = a.x,
                            .residual = {},
                            .weight = a.params[0],
                            .bias = a.params[1],
                            .eps = c_.norm_eps},
           a.stream);
  }
  void backward(const BackwardArgs& a) const override {
    auto g = a.grads;
    launch(LayerNormBackward{.dx = a.dx,
                             .dweight = g[0].tensor,
                             .dbias = g[1].tensor,
                             .dy = a.dy,
                             .x = a.x,
                             .mean = a.saved[0],
                             .rstd = a.saved[1],
                             .weight = a.params[0],
                             .dresidual = {},
                             .accumulate_weight = g[0].accumulate(),
                             .accumulate_bias = g[1].accumulate()},
           a.stream);
  }

 private:
  GptConfig c_;
};

}  // namespace

GptConfig gpt_preset(std::string_view name) {
  struct Preset {
    std::string_view name;
    int64_t width, layers, heads;
  };
  constexpr Preset presets[] = {{"tiny", 128, 4, 4},
                                {"gpt2", 768, 12, 12},
                                {"gpt2-medium", 1024, 24, 16},
                                {"gpt2-large", 1280, 36, 20},
                                {"gpt2-xl", 1600, 48, 25}};
  for (const Preset& p : presets)
    if (p.name == name) return {.width = p.width, .layers = p.layers, .heads = p.heads};
  fail(Exit::usage, "--model {}: no such preset; use tiny, gpt2, gpt2-medium, gpt2-large or gpt2-xl", name);
}

Model make_gpt(const GptConfig& c, DType dtype, int64_t seq, std::string name) {
  require(c.heads > 0 && c.width % c.heads == 0, Exit::usage, "a width of {} does not divide by {} heads",
          c.width, c.heads);
  require(0 < seq && seq <= c.positions, Exit::usage, "--seq_len {} is outside 1..{}, the model's positions",
          seq, c.positions);
  Model m;
  m.name = std::move(name), m.dtype = dtype;
  m.layers.push_back(std::make_unique<GptEmbedding>(c, seq, dtype));
  for (int l = 0; l < int(c.layers); ++l) m.layers.push_back(std::make_unique<GptBlock>(c, seq, l));
  m.layers.push_back(std::make_unique<FinalNorm>(c));
  m.head = std::make_unique<ClassifierHead>(
      ClassifierHead::Config{.unit = "wte", .weight = "wte.weight", .classes = c.vocab, .width = c.width});
  m.sample = {DType::int32, {seq}};
  m.rows_per_sample = seq;
  // 6 FLOPs a weight and token in matrix products, and causal attention counted once.
  const double weights =
      double(c.layers) * 12.0 * double(c.width) * double(c.width) + double(c.vocab) * double(c.width);
  m.flops_per_sample = double(seq) * (6.0 * weights + 6.0 * double(c.layers) * double(c.width) * double(seq));
  return m;
}

}  // namespace cleave
