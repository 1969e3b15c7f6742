#include "model/llama_block.h"

#include <gtest/gtest.h>

namespace cleave {
namespace {

constexpr LlamaConfig kConfig{
    .width = 10, .heads = 4, .kv_heads = 2, .head_dim = 6, .mlp_width = 14, .qkv_bias = true};
constexpr int64_t kSeq = 5, kRows = 2 * kSeq;

bool ends_with(const std::string& name, std::initializer_list<const char*> endings) {
  for (const char* e : endings)
    if (name.find(e) != std::string::npos) return true;
  return false;
}

// A block that computes part `index` of `parts` of the whole, with its part of one set of random parameters:
// rows of what makes heads and gates, columns of what reads them. The parameter `silent` is zero.
class Part {
 public:
  Part(int parts, int index, const char* silent)
      : block_(kConfig, {kConfig.heads / parts, kConfig.kv_heads / parts, kConfig.mlp_width / parts},
               std::make_shared<const RopeTable>(kSeq, rope_frequencies(kConfig.head_dim, 10000, {})), 0) {
    const UnitSpec unit = block_.units()[0];
    for (const ParamSpec& p : unit.params) {
      const bool by_rows = ends_with(p.name, {"q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"});
      const bool by_columns = ends_with(p.name, {"o_proj", "down_proj"});
      const int64_t rows = p.shape[0], columns = p.shape.size() > 1 ? p.shape[1] : 1;
      const int64_t whole = by_columns ? columns * parts : columns;
      const Philox random{7, hash_name(p.name)};
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < columns; ++c) {
          const int64_t row = by_rows ? index * rows + r : r, column = by_columns ? index * columns + c : c;
          data_.push_back(
              p.name.find(silent) == std::string::npos ? random.normal(uint64_t(row * whole + column)) : 0);
        }
    }
    int64_t at = 0;
    for (const ParamSpec& p : unit.params) {
      const Shape shape = p.shape.size() > 1 ? Shape{p.shape[0], p.shape[1]} : Shape{p.shape[0]};
      params_.emplace_back(data_.data() + at, DType::fp32, shape);
      at += p.numel();
    }
  }

  // What the block adds to x.
  std::vector<double> added(std::vector<float>& x) const {
    std::vector<float> y(x.size());
    std::vector<std::byte> keep(1 << 16), scratch(1 << 16);
    auto arena = [](std::vector<std::byte>& v) {
      return Arena(Tensor(v.data(), DType::uint8, {int64_t(v.size())}));
    };
    Arena kept = arena(keep), used = arena(scratch);
    Saved saved;
    Stream stream;
    block_.forward({.y = Tensor(y.data(), DType::fp32, {kRows, kConfig.width}),
                    .x = Tensor(x.data(), DType::fp32, {kRows, kConfig.width}),
                    .params = params_,
                    .saved = saved,
                    .keep = kept,
                    .scratch = used,
                    .position = {},
                    .stream = stream});
    stream.synchronize();
    std::vector<double> out(x.size());
    for (size_t i = 0; i < x.size(); ++i) out[i] = double(y[i]) - x[i];
    return out;
  }

 private:
  LlamaBlock block_;
  std::vector<float> data_;
  std::vector<Tensor> params_;
};

// What tensor parallelism rests on: a rank's share needs nothing of the others' but the sum.
TEST(LlamaBlock, SharesOfHeadsAndOfTheMlpAddUpToTheWhole) {
  std::vector<float> x(size_t(kRows * kConfig.width));
  const Philox random{3, 4};
  for (size_t i = 0; i < x.size(); ++i) x[i] = random.normal(i);
  for (const char* silent : {"down_proj", "o_proj"}) {  // attention alone, the MLP alone
    const std::vector<double> want = Part(1, 0, silent).added(x), first = Part(2, 0, silent).added(x),
                              second = Part(2, 1, silent).added(x);
    double size = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      EXPECT_NEAR(first[i] + second[i], want[i], 2e-5) << "without " << silent << ", element " << i;
      size = std::max(size, std::abs(want[i]));
    }
    EXPECT_GT(size, 1) << "the test would see nothing";
  }
}

}  // namespace
}  // namespace cleave
