#include "zero/weight_form.h"

#include "kernels/block_int8.h"

namespace cleave::zero {
namespace {

class AsTheyAre final : public WeightForm {
 public:
  int64_t bytes(int64_t) const override { return 0; }
  void encode(Tensor, Tensor, Stream&) const override {}
  void decode(Tensor, Tensor, Stream&) const override {}
};

// One byte per element, then a scale for each block of a shard (ZeRO++'s qwZ, arXiv 2306.10209).
class BlockInt8 final : public WeightForm {
 public:
  int64_t bytes(int64_t numel) const override {
    return codes_bytes(numel) + round_up(size_of(DType::fp32) * ceil_div(numel, kBlock), kAlign);
  }
  void encode(Tensor bytes, Tensor shard, Stream& stream) const override {
    const Parts to = parts(bytes, shard.numel());
    kernels::launch(kernels::ToBlockInt8{.codes = to.codes, .scales = to.scales, .x = shard, .block = kBlock},
                    stream);
  }
  void decode(Tensor shard, Tensor bytes, Stream& stream) const override {
    const Parts from = parts(bytes, shard.numel());
    kernels::launch(
        kernels::FromBlockInt8{.y = shard, .codes = from.codes, .scales = from.scales, .block = kBlock},
        stream);
  }

 private:
  static constexpr int64_t kBlock = 256, kAlign = 16;
  struct Parts {
    Tensor codes, scales;
  };
  static int64_t codes_bytes(int64_t numel) { return round_up(numel, kAlign); }
  static Parts parts(const Tensor& bytes, int64_t numel) {
    const int64_t blocks = ceil_div(numel, kBlock), at = codes_bytes(numel);
    const Tensor scales = bytes.slice({at, at + size_of(DType::fp32) * blocks});
    return {bytes.slice({0, numel}), Tensor(scales.raw(), DType::fp32, {blocks}, bytes.memory())};
  }
};

}  // namespace

std::unique_ptr<WeightForm> WeightForm::of_use(const StoreOptions& options) {
  if (options.gathers_int8) return std::make_unique<BlockInt8>();
  return std::make_unique<AsTheyAre>();
}

std::unique_ptr<WeightForm> WeightForm::of_publication(const StoreOptions&) {
  return std::make_unique<AsTheyAre>();
}

}  // namespace cleave::zero
