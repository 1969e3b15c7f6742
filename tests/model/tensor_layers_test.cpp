// Layers over a tensor axis against the same layers on one rank: outputs, input gradients, and every
// parameter gradient at the place of its elements in the whole parameter.
#include <gtest/gtest.h>

#include <map>

#include "model/family.h"
#include "zero/flat_layout.h"

namespace cleave::model {
namespace {

constexpr int64_t kLayerSeq = 6, kLayerRows = 2 * kLayerSeq, kVocab = 13;
using MakeModel = std::function<Model(const tensor_parallel::TensorAxis& axis)>;
using Arrays = std::map<std::string, std::vector<float>>;

std::vector<float> numbers(int64_t count, const char* name) {
  const Philox random{5, hash_name(name)};
  std::vector<float> out;
  for (int64_t i = 0; i < count; ++i) out.push_back(float(random.normal(uint64_t(i))));
  return out;
}

Tensor fp32(std::vector<float>& v, Shape shape) { return {v.data(), DType::fp32, shape}; }

// Parameters and gradients of a unit, flat as in the store, with values that depend on the element in the
// whole.
struct UnitMemory {
  explicit UnitMemory(const UnitSpec& spec)
      : layout(spec, 1), weights(size_t(layout.numel()), 0.f), grads(weights) {
    for (const zero::FlatLayout::Piece& p : layout.pieces({0, layout.numel()})) {
      const Philox random{5, hash_name(layout.param(p.param).name)};
      for (int64_t i = 0; i < p.elements.size(); ++i)
        weights[size_t(p.offset + i)] = 0.3f * float(random.normal(uint64_t(p.elements.begin + i)));
    }
  }
  Tensor view(std::vector<float>& from, int param) const {
    Shape shape;
    for (int64_t d : layout.param(param).shape) shape.dims[size_t(shape.rank++)] = d;
    return fp32(from, {layout.numel()}).slice(layout.range(param)).view(shape);
  }
  zero::FlatLayout layout;
  std::vector<float> weights, grads;
};

Arrays run_layer(const MakeModel& make, size_t index, const tensor_parallel::TensorAxis& axis,
                 comm::Communicator* world) {
  const Model model = make(axis);
  const Layer& layer = *model.layers[index];
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < kLayerRows; ++i) tokens.push_back(int32_t(i * 5 % kVocab));
  const int64_t rows = axis.local_rows(kLayerRows), first = axis.cuts_rows() ? axis.rank() * rows : 0;
  const bool embeds = index == 0;
  std::vector<std::unique_ptr<UnitMemory>> units;
  std::vector<Tensor> params;
  std::vector<ParamGradient> grads;
  std::vector<std::unique_ptr<bool>> written;
  for (const UnitSpec& spec : layer.units()) {
    UnitMemory& u = *units.emplace_back(std::make_unique<UnitMemory>(spec));
    for (int p = 0; p < u.layout.params(); ++p) {
      params.push_back(u.view(u.weights, p));
      grads.push_back({u.view(u.grads, p), written.emplace_back(std::make_unique<bool>(false)).get()});
    }
  }
  const TensorSpec x_spec{DType::fp32, {rows, 16}};
  std::vector<float> x = numbers(kLayerRows * 16, "x"), dy = numbers(kLayerRows * 16, "dy");
  std::vector<float> y(size_t(rows * 16), 0.f), dx(y);
  const Tensor input = embeds ? Tensor(tokens.data(), DType::int32, {kLayerRows})
                              : Tensor(x.data() + first * 16, DType::fp32, x_spec.shape);
  EXPECT_EQ(layer.output({input.dtype(), input.shape()}).shape, x_spec.shape);
  std::vector<std::byte> keep(1 << 20), scratch(1 << 20);
  Arena kept(Tensor(keep.data(), DType::uint8, {1 << 20})),
      used(Tensor(scratch.data(), DType::uint8, {1 << 20}));
  Saved saved;
  Stream stream;
  layer.forward({.y = fp32(y, x_spec.shape),
                 .x = input,
                 .params = params,
                 .saved = saved,
                 .keep = kept,
                 .scratch = used,
                 .position = {},
                 .stream = stream,
                 .constants = model.constants});
  layer.backward({.dx = embeds ? Tensor() : fp32(dx, x_spec.shape),
                  .dy = Tensor(dy.data() + first * 16, DType::fp32, x_spec.shape),
                  .x = input,
                  .params = params,
                  .grads = grads,
                  .saved = saved,
                  .scratch = used,
                  .position = {},
                  .stream = stream,
                  .constants = model.constants});
  Arrays out;
  auto add_up = [&](std::vector<float>& v) {
    if (world) world->all_reduce(fp32(v, {int64_t(v.size())}), stream);
  };
  for (auto& [name, local] : {std::pair<std::string, std::vector<float>&>{"y", y}, {"dx", dx}}) {
    std::vector<float>& whole = out[name] = std::vector<float>(size_t(kLayerRows * 16), 0.f);
    std::copy(local.begin(), local.end(), whole.begin() + first * 16);
    if (axis.cuts_rows()) add_up(whole);
  }
  for (const auto& u : units) {
    for (int p = 0; p < u->layout.params(); ++p)
      out[u->layout.param(p).name].resize(size_t(u->layout.param(p).whole_numel()), 0.f);
    for (const zero::FlatLayout::Piece& p : u->layout.pieces({0, u->layout.numel()}))
      std::copy_n(u->grads.begin() + p.offset, p.elements.size(),
                  out[u->layout.param(p.param).name].begin() + p.elements.begin);
  }
  for (const auto& u : units)
    for (int p = 0; p < u->layout.params(); ++p)
      if (!u->layout.param(p).cuts.empty() || axis.cuts_rows()) add_up(out[u->layout.param(p).name]);
  return out;
}

void expect_same(const MakeModel& make, std::initializer_list<int> sizes) {
  const size_t layers = make({}).layers.size();
  for (size_t index = 0; index < layers; ++index) {
    const Arrays want = run_layer(make, index, {}, nullptr);
    for (int ranks : sizes)
      for (bool cut_rows : {false, true})
        comm::run_ranks(ranks, [&](comm::Communicator& world) {
          const Arrays got = run_layer(make, index, tensor_parallel::TensorAxis(world, cut_rows), &world);
          ASSERT_EQ(got.size(), want.size());
          for (const auto& [name, values] : want)
            for (size_t i = 0; i < values.size(); ++i)
              ASSERT_NEAR(got.at(name)[i], values[i], 2e-5 * (1 + std::abs(values[i])))
                  << "layer " << index << ", " << name << " element " << i << ", " << ranks << " ranks, rows "
                  << (cut_rows ? "cut" : "whole");
        });
  }
}

TEST(TensorLayers, OfLlamaEqualOneRank) {
  expect_same(
      [](const tensor_parallel::TensorAxis& axis) {
        return make_model(kLlama,
                          {.vocab = kVocab,
                           .positions = kLayerSeq,
                           .width = 16,
                           .layers = 1,
                           .heads = 12,
                           .kv_heads = 6,
                           .head_dim = 4,
                           .mlp_width = 18,
                           .qkv_bias = true,
                           .output_bias = true},
                          DType::fp32, kLayerSeq, "llama", axis);
      },
      {2, 3});
}

TEST(TensorLayers, OfLlamaEqualOneRankWithSharedKeyAndValueHeads) {
  expect_same(
      [](const tensor_parallel::TensorAxis& axis) {
        return make_model(kLlama,
                          {.vocab = kVocab,
                           .positions = kLayerSeq,
                           .width = 16,
                           .layers = 1,
                           .heads = 12,
                           .kv_heads = 2,
                           .head_dim = 4,
                           .mlp_width = 24,
                           .qkv_bias = true},
                          DType::fp32, kLayerSeq, "llama", axis);
      },
      {2, 4, 6});
}

TEST(TensorLayers, OfGpt2EqualOneRank) {
  for (float dropout : {0.0f, 0.4f})
    expect_same(
        [dropout](const tensor_parallel::TensorAxis& axis) {
          return make_model(kGpt2,
                            {.vocab = kVocab,
                             .positions = kLayerSeq + 2,
                             .width = 16,
                             .layers = 1,
                             .heads = 4,
                             .dropout = dropout},
                            DType::fp32, kLayerSeq, "gpt", axis);
        },
        {2, 4});
}

TEST(TensorLayers, RefuseHeadsThatTheAxisDoesNotDivide) {
  comm::run_ranks(3, [](comm::Communicator& world) {
    const ModelConfig c{.vocab = 8,
                        .positions = 4,
                        .width = 8,
                        .layers = 1,
                        .heads = 4,
                        .kv_heads = 2,
                        .head_dim = 2,
                        .mlp_width = 6};
    try {
      make_model(kLlama, c, DType::fp32, 4, "llama", tensor_parallel::TensorAxis(world));
      FAIL() << "accepted";
    } catch (const Error& e) {
      EXPECT_EQ(e.exit(), Exit::usage);
      EXPECT_NE(
          std::string(e.what()).find("tensor_parallel.autotp_size: 4 heads are not divisible by 3 ranks"),
          std::string::npos)
          << e.what();
    }
  });
}

}  // namespace
}  // namespace cleave::model
