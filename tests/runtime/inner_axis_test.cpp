// An axis inside the data axis that cuts parameters, as for experts: each of its ranks has a part, rows
// travel to that rank and back, and the rest of the data axis shares the part.
#include <gtest/gtest.h>

#include "tests/runtime/cut_models.h"
#include "tests/scratch.h"

namespace cleave::testing {
namespace {

constexpr int64_t kWidth = 16;

// y = x times one value per column.
class Spread final : public model::Layer {
 public:
  explicit Spread(const tensor_parallel::SequenceAxis& axis, bool mixed = false)
      : axis_(axis), mixed_(mixed) {}

  std::vector<UnitSpec> units() const override {
    UnitSpec unit{"spread",
                  {{"spread.w",
                    {kWidth / axis_.size()},
                    {Init::Kind::normal, 1.0f},
                    true,
                    {{Axis::sequence, {.extents = {kWidth}, .rank = axis_.rank(), .ranks = axis_.size()}}}}}};
    if (mixed_) unit.params.push_back({"spread.whole", {3}, {}, true});
    return {unit};
  }
  model::TensorSpec output(const model::TensorSpec& in) const override { return in; }

  void forward(const model::ForwardArgs& a) const override {
    const Tensor x = to_heads(rows(a.x), a.scratch, a.stream);
    a.stream.enqueue([x, w = a.params[0]] { times(x, w); });
    to_rows(rows(a.y), x, a.scratch, a.stream);
  }
  void backward(const model::BackwardArgs& a) const override {
    const Tensor x = to_heads(rows(a.x), a.scratch, a.stream), dy = to_heads(rows(a.dy), a.scratch, a.stream);
    a.stream.enqueue([x, dy, dw = a.grads[0].tensor, adds = a.grads[0].accumulate()] {
      const int64_t n = dw.numel();
      for (int64_t c = 0; c < n; ++c) {
        float sum = adds ? dw.as<float>()[c] : 0;
        for (int64_t i = c; i < x.numel(); i += n) sum += x.as<float>()[i] * dy.as<float>()[i];
        dw.as<float>()[c] = sum;
      }
    });
    if (!a.dx.defined()) return;
    a.stream.enqueue([dy, w = a.params[0]] { times(dy, w); });
    to_rows(rows(a.dx), dy, a.scratch, a.stream);
  }

 private:
  static void times(const Tensor& x, const Tensor& w) {
    for (int64_t i = 0; i < x.numel(); ++i) x.as<float>()[i] *= w.as<float>()[i % w.numel()];
  }
  static Tensor rows(const Tensor& x) { return x.view({x.numel() / kWidth, kWidth}); }
  // Returns all positions of this rank's columns, in scratch.
  Tensor to_heads(const Tensor& x, Arena& scratch, Stream& stream) const {
    const Tensor all = scratch.take(DType::fp32, {x.dim(0) * axis_.size(), kWidth / axis_.size()});
    if (axis_.size() == 1)
      kernels::launch(kernels::Cast{.y = all, .x = x}, stream);
    else
      axis_.to_heads(all, x, {.widths = {kWidth}}, kTokens / axis_.size(), scratch, stream, "spread");
    return all;
  }
  void to_rows(const Tensor& x, const Tensor& all, Arena& scratch, Stream& stream) const {
    if (axis_.size() == 1)
      kernels::launch(kernels::Cast{.y = x, .x = all}, stream);
    else
      axis_.to_tokens(x, all, {.widths = {kWidth}}, kTokens / axis_.size(), scratch, stream, "spread");
  }

  tensor_parallel::SequenceAxis axis_;
  bool mixed_;
};

runtime::ModelFactory spread(bool mixed = false) {
  return [=](const model::Axes& axes) {
    model::Model m = cut_gpt(false)(axes);
    m.layers.insert(m.layers.begin() + 1, std::make_unique<Spread>(axes.sequence, mixed));
    return m;
  };
}

// A larger eps keeps Adam from making steps of gradients that are only rounding, such as those of key biases.
config::DsConfig with_eps(const Layout& l) {
  config::DsConfig c = config_of(l, 4 / l.data);
  c.optimizer.eps = 1e-4;
  return c;
}

TEST(InnerAxis, ThatCutsAUnitLearnsWhatOneRankLearns) {
  const Training alone = train_on_all({}, with_eps({}), spread(), 4);
  std::vector<Layout> layouts = {{.tensor = 2, .cut_rows = false},  // single rank
                                 {.data = 2, .zero = 2},
                                 {.sequence = 2},
                                 {.zero = 3, .sequence = 4},
                                 {.data = 2, .zero = 1, .offload = true, .sequence = 2},
                                 {.pipe = 2, .data = 2, .zero = 1, .sequence = 2}};
  for (int stage : {0, 1, 2, 3})
    for (bool clips : {true, false})
      layouts.push_back({.data = 2, .zero = stage, .sequence = 2, .clips = clips});
  for (const Layout& l : layouts) {
    SCOPED_TRACE(l.text());
    Layout one = l;
    one = {.clips = l.clips};
    const Training want = l.clips ? alone : train_on_all(one, with_eps(one), spread(), 4);
    expect_close(train_on_all(l, with_eps(l), spread(), 4), want, 1e-5, l.text());
  }
}

TEST(InnerAxis, ThatCutsAUnitHasItsShardsOverTheRestOfTheDataAxis) {
  for (const int stage : {1, 3}) {
    const Layout l{.data = 2, .zero = stage, .sequence = 2};
    comm::run_ranks(l.ranks(), [&](comm::Communicator& world) {
      runtime::Engine engine(config_of(l, 2), spread(), world, {});
      const std::string units = engine.describe_units();
      const size_t at = units.find("spread");
      EXPECT_NE(at, units.npos) << units;
      // One parameter with 16 elements: two ranks have 8 each, and two halves of these have 4.
      EXPECT_NE(units.substr(at).find(fmt::format("{:>6} {:>12} {:>12}", 1, 8, 4)), units.npos) << units;
      train(engine, world, 1, kTokens);
      const auto talked = engine.comm_bytes_by_group();
      EXPECT_TRUE(std::any_of(talked.begin(), talked.end(), [](const auto& group) {
        return group.first == RankGroup{Axis::data, RankGroup::Purpose::parts};
      }));
    });
  }
}

TEST(InnerAxis, ThatCutsAUnitIsNotSeenInACheckpoint) {
  for (const Layout& from : {Layout{.data = 2, .zero = 3, .sequence = 2}, Layout{}})
    for (const Layout& to :
         {Layout{}, Layout{.zero = 1, .sequence = 4}, Layout{.data = 2, .zero = 2, .sequence = 2}}) {
      SCOPED_TRACE(from.text() + " to " + to.text());
      Scratch scratch;
      Weights saved;
      comm::run_ranks(from.ranks(), [&](comm::Communicator& world) {
        runtime::Engine engine(config_of(from, 4 / from.data), spread(), world, {});
        train(engine, world, 2, kTokens);
        engine.save_checkpoint(scratch.path("run"), "now");
        const Weights mine = weights_of(engine);
        if (world.rank() == 0) saved = mine;
      });
      comm::run_ranks(to.ranks(), [&](comm::Communicator& world) {
        runtime::Engine engine(config_of(to, 4 / to.data), spread(), world, {});
        engine.load_checkpoint(scratch.path("run"));
        EXPECT_EQ(weights_of(engine), saved);
      });
    }
}

TEST(InnerAxis, CutsAllOfAUnitOrNoneAndKnowsNoNearRanks) {
  const Layout l{.data = 2, .zero = 3, .sequence = 2};
  comm::run_ranks(l.ranks(), [&](comm::Communicator& world) {
    expect_error(Exit::usage, {"unit spread", "splits 1 of its 2 parameters", "two units"},
                 [&] { runtime::Engine(config_of(l, 2), spread(true), world, {}); });
    config::DsConfig c = config_of(l, 2);
    c.zero.mics_shard_size = 2;
    expect_error(Exit::usage, {"unit spread", "near ranks", "mics_shard_size"},
                 [&] { runtime::Engine(c, spread(), world, {}); });
  });
}

}  // namespace
}  // namespace cleave::testing
