#include "model/check_gradients.h"

#include <algorithm>
#include <cmath>

#include "kernels/elementwise.h"

namespace cleave::model {
namespace {

using Values = std::vector<float>;

Values numbers(int64_t count, uint64_t seed, std::string_view name, float scale) {
  const Philox random{seed, hash_name(name)};
  Values out;
  for (int64_t i = 0; i < count; ++i) out.push_back(scale * float(random.normal(uint64_t(i))));
  return out;
}

Shape shape_of(const std::vector<int64_t>& dims) {
  Shape shape;
  for (const int64_t d : dims) shape.dims[size_t(shape.rank++)] = d;
  return shape;
}

// Layer alone on one rank, with contiguous parameters as in a unit.
class Alone {
 public:
  Alone(const Layer& layer, const TensorSpec& input, const GradientCheck& how)
      : layer_(layer), input_(input), output_(layer.output(input)), how_(how) {
    for (const UnitSpec& unit : layer.units())
      for (const ParamSpec& p : unit.params) specs_.push_back(p), frozen_.push_back(unit.frozen);
    for (const ParamSpec& p : specs_) {
      const float mean = p.init.kind == Init::Kind::ones ? 1 : 0;
      for (const float v : numbers(p.numel(), how.seed, p.name, 0.4f)) params_.push_back(mean + v);
    }
    for (const LayerState& s : layer.states()) begin(s);
    if (input.dtype == DType::int32) {
      CHECK(how.tokens > 0, "GradientCheck::tokens: an int32 input needs a bound of its values");
      for (int64_t i = 0; i < input.shape.numel(); ++i)
        tokens_.push_back(int32_t(Philox{how.seed, 1}.word(uint64_t(i)) % uint32_t(how.tokens)));
    } else {
      x_ = numbers(input.shape.numel(), how.seed, "x", 1);
    }
    dy_ = numbers(output_.shape.numel(), how.seed, "dy", 1);
    measure();
  }

  bool has_dx() const { return tokens_.empty(); }
  Values& x() { return x_; }
  size_t params() const { return specs_.size(); }
  const ParamSpec& spec(size_t p) const { return specs_[p]; }
  bool frozen(size_t p) const { return frozen_[p]; }
  std::span<float> values(size_t p) { return part(params_, p); }

  double forward() {
    Saved saved;
    Arena keep(memory_of(keep_)), scratch(memory_of(scratch_));
    Values y(dy_.size());
    forward(saved, keep, scratch, stream_, y.data());
    double sum = side_;
    for (size_t i = 0; i < y.size(); ++i) sum += double(y[i]) * double(dy_[i]);
    return sum;
  }

  struct Gradients {
    Values x;
    std::vector<Values> params;
  };
  Gradients backward(bool split, int times) {
    Gradients out;
    out.x.resize(x_.size());
    Values flat(params_.size(), NAN);
    const auto written = std::make_unique<bool[]>(specs_.size());
    for (int i = 0; i < times; ++i) {
      Saved saved;
      Arena keep(memory_of(keep_)), scratch(memory_of(scratch_)), later(memory_of(later_));
      Values y(dy_.size());
      forward(saved, keep, scratch, stream_, y.data());
      backward(saved,
               {scratch, later, stream_, has_dx() ? out.x.data() : nullptr, flat.data(), written.get()},
               split);
    }
    for (size_t p = 0; p < specs_.size(); ++p) {
      const std::span<float> gradient = part(flat, p);
      out.params.emplace_back(gradient.begin(), gradient.end());
    }
    return out;
  }

 private:
  // Destinations of a backward; null pointers and dry arenas for measuring.
  struct Call {
    Arena &scratch, &later;
    Stream& stream;
    float *dx, *gradients;
    bool* written;
    bool dry = false;
  };

  void measure() {
    Stream discard(Stream::Mode::discard);
    for (const bool split : {false, true}) {
      if (split && !layer_.splits_backward()) break;
      Saved saved;
      Arena keep, scratch, later;
      forward(saved, keep, scratch, discard, nullptr);
      const auto written = std::make_unique<bool[]>(specs_.size());
      backward(saved, {scratch, later, discard, nullptr, nullptr, written.get(), true}, split);
      keep_.resize(std::max(keep_.size(), size_t(keep.peak_bytes()))),
          scratch_.resize(std::max(scratch_.size(), size_t(scratch.peak_bytes()))),
          later_.resize(std::max(later_.size(), size_t(later.peak_bytes())));
    }
    for (auto* memory : {&keep_, &scratch_, &later_}) memory->resize(memory->size() + 64);
  }

  void forward(Saved& saved, Arena& keep, Arena& scratch, Stream& stream, float* y) {
    const bool dry = y == nullptr;
    const std::vector<Tensor> params = views(dry ? nullptr : params_.data());
    const std::vector<StateViews> states = lasting(dry);
    side_ = 0;
    layer_.forward(
        {.y = Tensor(y, DType::fp32, output_.shape),
         .x = input(dry),
         .params = params,
         .saved = saved,
         .keep = keep,
         .scratch = scratch,
         .position = {},
         .stream = stream,
         .constants = how_.constants,
         .states = states,
         .side_loss = layer_.has_side_loss() ? Tensor(dry ? nullptr : &side_, DType::fp64, {1}) : Tensor()});
    stream.synchronize();
  }

  void backward(const Saved& saved, const Call& call, bool split) {
    const bool dry = call.dry;
    const std::vector<Tensor> params = views(dry ? nullptr : params_.data()), slots = views(call.gradients);
    const std::vector<StateViews> states = lasting(dry);
    std::vector<ParamGradient> grads;
    for (size_t p = 0; p < slots.size(); ++p)
      grads.push_back(frozen_[p] ? ParamGradient{} : ParamGradient{slots[p], &call.written[p]});
    Saved for_weight;
    const auto run = [&](BackwardPart part) {
      const bool weights = part != BackwardPart::input, inputs = part != BackwardPart::weight;
      layer_.backward({.dx = inputs && has_dx() ? Tensor(call.dx, DType::fp32, input_.shape) : Tensor(),
                       .dy = Tensor(dry ? nullptr : dy_.data(), DType::fp32, output_.shape),
                       .x = input(dry),
                       .params = inputs ? std::span(params) : std::span<const Tensor>(),
                       .grads = weights ? std::span(grads) : std::span<ParamGradient>(),
                       .saved = saved,
                       .scratch = call.scratch,
                       .position = {},
                       .stream = call.stream,
                       .part = part,
                       .for_weight = split ? &for_weight : nullptr,
                       .keep = split ? &call.later : nullptr,
                       .constants = how_.constants,
                       .states = states});
      call.stream.synchronize();
    };
    if (split)
      run(BackwardPart::input), run(BackwardPart::weight);
    else
      run(BackwardPart::both);
  }

  // Sets the initial state.
  void begin(const LayerState& s) {
    const Shape shape = shape_of(s.shape);
    std::vector<std::byte>& memory = states_.emplace_back(size_t(shape.numel() * size_of(s.dtype)));
    lasting_.push_back({.lasting = Tensor(memory.data(), s.dtype, shape)});
    kernels::launch(kernels::Fill{.y = lasting_.back().lasting, .value = s.begin}, stream_);
    stream_.synchronize();
  }
  std::vector<StateViews> lasting(bool dry) const {
    if (!dry) return lasting_;
    std::vector<StateViews> out;
    for (const StateViews& s : lasting_)
      out.push_back({.lasting = Tensor(nullptr, s.lasting.dtype(), s.lasting.shape())});
    return out;
  }
  Tensor input(bool dry) {
    if (has_dx()) return Tensor(dry ? nullptr : x_.data(), DType::fp32, input_.shape);
    return Tensor(dry ? nullptr : tokens_.data(), DType::int32, input_.shape);
  }
  std::vector<Tensor> views(float* flat) const {
    std::vector<Tensor> out;
    for (const ParamSpec& p : specs_) {
      out.emplace_back(flat, DType::fp32, shape_of(p.shape));
      if (flat) flat += p.numel();
    }
    return out;
  }
  std::span<float> part(Values& flat, size_t p) const {
    size_t at = 0;
    for (size_t i = 0; i < p; ++i) at += size_t(specs_[i].numel());
    return std::span(flat).subspan(at, size_t(specs_[p].numel()));
  }
  static Tensor memory_of(std::vector<std::byte>& memory) {
    return Tensor(memory.data(), DType::uint8, {int64_t(memory.size())});
  }

  const Layer& layer_;
  TensorSpec input_, output_;
  GradientCheck how_;
  std::vector<ParamSpec> specs_;
  std::vector<bool> frozen_;
  Values x_, dy_, params_;
  std::vector<std::vector<std::byte>> states_;  // lasting parts
  std::vector<StateViews> lasting_;
  double side_ = 0;  // from the last forward
  std::vector<int32_t> tokens_;
  std::vector<std::byte> keep_, scratch_, later_;
  Stream stream_;
};

void expect_close(double got, double want, const GradientCheck& how, const std::string& what) {
  if (std::abs(got - want) <= how.tolerance * (1 + std::abs(want))) return;
  fail(Exit::internal, "{}: backward gives {:.6g}, and it should be {:.6g}", what, got, want);
}

void compare(Alone& alone, std::span<float> values, std::span<const float> gradient, const std::string& name,
             const GradientCheck& how) {
  const size_t stride = std::max<size_t>(1, values.size() / size_t(how.elements));
  for (size_t i = 0; i < values.size(); i += stride) {
    const float before = values[i];
    values[i] = before + how.step;
    const double above = alone.forward();
    values[i] = before - how.step;
    const double below = alone.forward();
    values[i] = before;
    expect_close(gradient[i], (above - below) / (2 * double(how.step)), how,
                 fmt::format("the gradient of {}, element {}, by finite differences", name, i));
  }
}

void expect_same(std::span<const float> got, std::span<const float> once, double times,
                 const std::string& name, const GradientCheck& how) {
  for (size_t i = 0; i < got.size(); ++i)
    expect_close(got[i], times * double(once[i]), how, fmt::format("{}, element {}", name, i));
}

}  // namespace

void check_gradients(const Layer& layer, const TensorSpec& input, const GradientCheck& how) {
  Alone alone(layer, input, how);
  const Alone::Gradients once = alone.backward(false, 1), twice = alone.backward(false, 2);
  if (alone.has_dx()) compare(alone, alone.x(), once.x, "the input", how);
  for (size_t p = 0; p < alone.params(); ++p) {
    if (alone.frozen(p)) continue;
    const std::string& name = alone.spec(p).name;
    compare(alone, alone.values(p), once.params[p], name, how);
    expect_same(twice.params[p], once.params[p], 2,
                "a second micro-batch's gradient of " + name + " added to the first", how);
  }
  if (!layer.splits_backward()) return;
  const Alone::Gradients split = alone.backward(true, 1);
  if (alone.has_dx()) expect_same(split.x, once.x, 1, "the gradient of the input in a split backward", how);
  for (size_t p = 0; p < alone.params(); ++p)
    if (!alone.frozen(p))
      expect_same(split.params[p], once.params[p], 1,
                  "the gradient of " + alone.spec(p).name + " in a split backward", how);
}

}  // namespace cleave::model
