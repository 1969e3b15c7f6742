// Stage 3 with int8 gathers (zero_quantized_weights).
#include <gtest/gtest.h>

#include "tests/runtime/compare.h"
#include "tests/scratch.h"

namespace cleave::testing {
namespace {

config::DsConfig quantized(int ranks, int64_t accumulation = 1) {
  config::DsConfig c = config_for(ranks, 2, accumulation);
  c.zero.stage = 3, c.zero.quantized_weights = true;
  return c;
}

config::DsConfig plain(config::DsConfig c) {
  c.zero.quantized_weights = false;
  return c;
}

const auto gpt = [] { return small_gpt(); };

// The blocks depend only on the shards, and so do all later results.
TEST(QuantizedGathers, HaveTheSameBitsInEveryLayoutWithTheSameShards) {
  const Scratch scratch;
  for (const int ranks : {2, 3, 4}) {
    const Training want = train_on(ranks, quantized(ranks, 2), gpt, 4);
    const auto expect_same = [&](const char* what, auto change) {
      config::DsConfig c = quantized(ranks, 2);
      change(c);
      expect_same_bits(train_on(ranks, c, gpt, 4), want, fmt::format("{}, {} ranks", what, ranks));
    };
    expect_same("overlap", [](config::DsConfig& c) { c.zero.overlap_comm = true; });
    expect_same("no prefetch", [](config::DsConfig& c) { c.zero.stage3_prefetch_bucket_size = 0; });
    expect_same("small collectives", [](config::DsConfig& c) { c.zero.allgather_bucket_size = 999; });
    expect_same("recomputed", [](config::DsConfig& c) { c.checkpointing.interval = 1; });
    expect_same("state on the host",
                [](config::DsConfig& c) { c.zero.offload_optimizer.device = config::OffloadDevice::cpu; });
    expect_same("weights on the host",
                [](config::DsConfig& c) { c.zero.offload_param.device = config::OffloadDevice::cpu; });
    expect_same("weights on disk", [&](config::DsConfig& c) {
      c.zero.offload_param.device = config::OffloadDevice::nvme;
      c.zero.offload_param.nvme_path = scratch.folder();
      c.zero.overlap_comm = true;
    });
  }
}

// A weight has an error of at most 1/254 of the largest in its block. For weights drawn from one normal
// distribution this is about a hundredth of their deviation, in random directions: far less than the change
// of 20 steps.
TEST(QuantizedGathers, TrainLikePlainOnesFromRoundedWeights) {
  for (const int ranks : {2, 4})
    for (const bool bf16 : {false, true}) {
      config::DsConfig c = quantized(ranks);
      if (bf16) c.precision = config::Precision::bf16;
      const auto model = [&] { return small_gpt(bf16 ? DType::bf16 : DType::fp32); };
      const Training got = train_on(ranks, c, model, 20), want = train_on(ranks, plain(c), model, 20);
      EXPECT_NE(got.steps[0].loss, want.steps[0].loss);
      for (size_t s = 0; s < 20; ++s)
        EXPECT_NEAR(got.steps[s].loss / want.steps[s].loss, 1, 0.01) << "step " << s << ", " << ranks;
      EXPECT_LT(got.steps[19].loss, 0.9 * got.steps[0].loss);
    }
}

TEST(QuantizedGathers, ChangeNothingWithoutGathers) {
  expect_same_bits(train_on(1, quantized(1), gpt, 3), train_on(1, plain(quantized(1)), gpt, 3), "one rank");
  config::DsConfig whole = quantized(2);
  whole.zero.stage3_param_persistence_threshold = 1'000'000'000;
  expect_same_bits(train_on(2, whole, gpt, 3), train_on(2, plain(whole), gpt, 3), "whole units");
  config::DsConfig stage2 = quantized(2);
  stage2.zero.stage = 2;
  expect_same_bits(train_on(2, stage2, gpt, 3), train_on(2, plain(stage2), gpt, 3), "stage 2");
}

}  // namespace
}  // namespace cleave::testing
