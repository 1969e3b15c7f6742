// Plans against measurements of real trainings with the same layout, to the byte.
#include <gtest/gtest.h>

#include <regex>

#include <algorithm>

#include "core/units.h"
#include "tests/plan/planned.h"
#include "tests/sampled.h"
#include "tests/scratch.h"

namespace cleave::testing {
namespace {

TEST(Plan, EqualsMeasurementsInEveryLayout) {
  Sampled sampled;
  const Make gpt = [] { return deep_gpt(true); }, llama = [] { return small_llama(DType::bf16); };
  for (const int pipe : {1, 2, 3})
    for (const int data : {1, 2, 3})
      for (const int stage : {0, 1, 2, 3})
        for (const bool offload : {false, true}) {
          if (!sampled.next()) continue;
          config::DsConfig c = config_for(data, 2, 3);
          c.pipeline.stages = pipe, c.zero.stage = stage;
          c.zero.overlap_comm = stage == 3;
          c.gradient_clipping = 1;
          if (offload) c.zero.offload_optimizer.device = config::OffloadDevice::cpu;
          const std::string layout =
              fmt::format("pipe {} data {} stage {} offload {}", pipe, data, stage, offload);
          expect_planned(c, pipe * data, gpt, layout);
          c.precision = config::Precision::bf16;
          expect_planned(c, pipe * data, llama, layout + " llama bf16");
        }
}

runtime::ModelFactory cut_llama() {
  return [](const model::Axes& axes) {
    return model::make_model(model::kLlama,
                             {.vocab = kVocab,
                              .positions = 8,
                              .width = 12,
                              .layers = 2,
                              .heads = 4,
                              .kv_heads = 2,
                              .head_dim = 4,
                              .mlp_width = 20},
                             DType::fp32, 8, "cut", axes);
  };
}

TEST(Plan, ProvesThatCallsMatchWithATensorAxis) {
  for (const char* schedule : {"1f1b", "interleaved", "zb-h1"})
    for (const int stage : {0, 2, 3})
      for (const bool cut_rows : {false, true}) {
        config::DsConfig c = config_for(2, 1, 4);
        c.pipeline.stages = 2, c.pipeline.schedule = schedule, c.zero.stage = stage;
        c.pipeline.virtual_stages = std::string(schedule) == "interleaved" ? 2 : 1;
        c.tensor_parallel.autotp_size = 4, c.tensor_parallel.sequence_parallel = cut_rows;
        c.zero.overlap_comm = stage == 3;
        c.tensor_parallel.tp_overlap_comm = stage > 0, c.tensor_parallel.overlap_rows = stage == 2 ? 1 : 0;
        const plan::CallProof proof =
            plan::prove_calls(16, [&](comm::Communicator& ranks, const runtime::EngineOptions& options) {
              return std::make_unique<runtime::Engine>(c, cut_llama(), ranks, options);
            });
        EXPECT_EQ(proof.ranks, 16);
      }
}

TEST(Plan, EqualsMeasurementsWithATensorAxis) {
  for (const int pipe : {1, 2})
    for (const int tensor : {2, 4})
      for (const bool cut_rows : {false, true}) {
        config::DsConfig c = config_for(8 / pipe / tensor, 1, 2);
        c.pipeline.stages = pipe, c.zero.stage = 3;
        c.tensor_parallel.autotp_size = tensor, c.tensor_parallel.sequence_parallel = cut_rows;
        c.tensor_parallel.tp_overlap_comm = pipe == 1, c.tensor_parallel.overlap_rows = 2;
        expect_planned(c, 8, cut_llama(),
                       fmt::format("pipe {} tensor {} {}", pipe, tensor, cut_rows ? "cut" : "whole"), 8);
      }
}

// 4100 tokens, in a table of 4224 rows on one rank and 4352 over two of 2176.
runtime::ModelFactory large_vocabulary(DType type, bool tied) {
  return [=](const model::Axes& axes) {
    return model::make_model(model::kLlama,
                             {.vocab = 4100,
                              .positions = 8,
                              .width = 8,
                              .layers = 2,
                              .heads = 2,
                              .kv_heads = 2,
                              .head_dim = 4,
                              .mlp_width = 12,
                              .tied = tied},
                             type, 8, "large", axes);
  };
}

TEST(Plan, EqualsMeasurementsWithAPaddedVocabularyAndCountsItAsMemoryOnly) {
  for (const int tensor : {1, 2})
    for (const int stage : {0, 1, 3})
      for (const bool tied : {false, true})
        for (const config::LogitsType logits : {config::LogitsType::fp32, config::LogitsType::model}) {
          config::DsConfig c = config_for(2, 2, 2);
          c.precision = config::Precision::bf16, c.zero.stage = stage, c.tensor_parallel.autotp_size = tensor;
          c.logits_dtype = logits, c.logits_rows = 5;
          c.zero.overlap_comm = stage == 3;
          c.pipeline.stages = tied ? 1 : 2;
          const int world = 2 * tensor * c.pipeline.stages;
          const runtime::ModelFactory model = large_vocabulary(DType::bf16, tied);
          expect_planned(c, world, model, fmt::format("tensor {} stage {} tied {}", tensor, stage, tied), 8);
          const plan::JobPlan plan = plan_for(c, world, model);
          const int64_t blocks = 2 * (2 * 8 + 4 * 8 * 8 + 3 * 8 * 12) + 8;
          EXPECT_EQ(plan.params, blocks + (tied ? 1 : 2) * 4100 * 8) << "padding does not count";
        }
  config::DsConfig c = config_for(1);
  const int64_t table = plan_for(c, 1, large_vocabulary(DType::fp32, true))
                            .ranks[0]
                            .memory.at(MemoryKind::device, Category::weights);
  EXPECT_EQ(table, 4 * (2 * (2 * 8 + 4 * 8 * 8 + 3 * 8 * 12) + 8 + 4224 * 8));
}

// Plans the memory of a GPU rank without a GPU: one buffer of the model's type for all rows of logits of such
// a narrow model, and the configured number of rows. Without a gradient next to the logits, an evaluation
// with its hits (four bytes per row) is the peak.
TEST(Plan, OfAGpuHasTheChunkOfLogitsThatItsEngineTakes) {
  constexpr int64_t kRows = 16384, kColumns = 4224;
  const auto activations = [&](auto change) {
    config::DsConfig c = config_for(1);
    c.train_micro_batch_size_per_gpu = c.train_batch_size = kRows / 8;
    c.precision = config::Precision::bf16;
    change(c);
    const plan::JobPlan plan =
        plan::plan_job(c, 1, [&](comm::Communicator& ranks, runtime::EngineOptions options) {
          options.device = Device::cuda(0);
          return std::make_unique<runtime::Engine>(c, large_vocabulary(DType::bf16, true), ranks, options);
        });
    return plan.ranks[0].memory.at(MemoryKind::device, Category::activations);
  };
  const int64_t as_it_is = activations([](config::DsConfig&) {});
  EXPECT_EQ(activations([](config::DsConfig& c) { c.logits_rows = kRows; }), as_it_is);
  EXPECT_EQ(activations([](config::DsConfig& c) { c.logits_dtype = config::LogitsType::fp32; }) - as_it_is,
            kRows * kColumns * 4 - kRows * 4);
  EXPECT_EQ(as_it_is - activations([](config::DsConfig& c) { c.logits_rows = 4096; }),
            (kRows - 4096) * kColumns * 2);
}

// Weights and gradients of each unit are separate allocations; all are much smaller than a granule.
TEST(Plan, RoundsMovedMemoryToGranulesForRegisteredBuffers) {
  constexpr int64_t kGranule = int64_t{2} << 20;
  const auto table = [](int stage) {
    config::DsConfig c = config_for(2);
    c.zero.stage = stage;
    return plan::plan_job(c, 2,
                          [&](comm::Communicator& ranks, runtime::EngineOptions options) {
                            options.device = Device::cuda(0);
                            return std::make_unique<runtime::Engine>(
                                c, factory_of([] { return small_gpt(); }), ranks, options);
                          })
        .ranks[0]
        .memory;
  };
  const int64_t units = int64_t(small_gpt().units().size());
  for (const int stage : {1, 3}) {
    const MemoryTable without = table(stage);
    setenv("CLEAVE_NCCL_REGISTER", "on", 1);
    const MemoryTable with = table(stage);
    unsetenv("CLEAVE_NCCL_REGISTER");
    MemoryTable want = without;
    want.at(MemoryKind::device, Category::weights) = units * kGranule;
    want.at(MemoryKind::device, Category::gradients) = units * kGranule;
    for (const Category c : {Category::buckets, Category::gathered})
      want.at(MemoryKind::device, c) = without.at(MemoryKind::device, c) > 0 ? kGranule : 0;
    EXPECT_EQ(with, want) << "stage " << stage << "\n" << format(want, &with);
  }
}

TEST(Plan, EqualsMeasurementsAndMatchesCallsWithASequenceAxis) {
  for (const int pipe : {1, 2})
    for (const int tensor : {1, 2})
      for (const int zero : {1, 3}) {
        config::DsConfig c = config_for(8 / pipe / tensor / 2, 2, 2);
        c.pipeline.stages = pipe, c.zero.stage = zero, c.sequence_parallel_size = 2;
        c.tensor_parallel.autotp_size = tensor;
        const runtime::ModelFactory model = [](const model::Axes& axes) {
          return model::make_model(
              model::kGpt2,
              {.vocab = kVocab, .positions = 8, .width = 16, .layers = 2, .heads = 4, .dropout = 0.1f},
              DType::fp32, 8, "cut", axes);
        };
        expect_planned(c, 8, model, fmt::format("pipe {} tensor {} zero {}", pipe, tensor, zero), 8);
        const plan::CallProof proof =
            plan::prove_calls(8, [&](comm::Communicator& ranks, const runtime::EngineOptions& options) {
              return std::make_unique<runtime::Engine>(c, model, ranks, options);
            });
        EXPECT_GT(proof.calls, 8 * 4 * 2);
      }
}

TEST(Plan, EqualsMeasurementsUnderEverySchedule) {
  for (const char* schedule : {"gpipe", "1f1b", "interleaved", "zb-h1"}) {
    config::DsConfig c = config_for(2, 1, 4);
    c.pipeline.stages = 2, c.pipeline.schedule = schedule;
    c.pipeline.virtual_stages = std::string(schedule) == "interleaved" ? 2 : 1;
    c.zero.stage = 2;
    expect_planned(
        c, 4, [] { return deep_gpt(false); }, schedule);
  }
}

TEST(Plan, EqualsMeasurementsWithRecomputationAndExactSums) {
  for (const char* schedule : {"1f1b", "zb-h1"})
    for (const bool exact : {false, true})
      for (const int way : {0, 1, 2}) {
        config::DsConfig c = config_for(2, 1, 4);
        c.pipeline.stages = 2, c.pipeline.schedule = schedule;
        c.zero.stage = 3, c.exact_sums = exact;
        c.checkpointing = {.interval = way == 2 ? 0 : 1, .lean = way == 2, .to_host = way == 1};
        expect_planned(
            c, 4, [] { return deep_gpt(true); }, fmt::format("{} exact {} way {}", schedule, exact, way));
      }
}

TEST(Plan, EqualsMeasurementsWithGroupsOfNearRanks) {
  for (const bool hybrid : {false, true}) {
    config::DsConfig c = config_for(4, 1, 2);
    c.zero.stage = 3;
    (hybrid ? c.zero.mics_shard_size : c.zero.zero_hpz_partition_size) = 2;
    expect_planned(
        c, 4, [] { return small_gpt(); }, hybrid ? "hybrid" : "nested");
    c.pipeline.stages = 2;
    expect_planned(
        c, 8, [] { return deep_gpt(true); }, hybrid ? "hybrid, 2 stages" : "nested, 2 stages");
  }
}

TEST(Plan, EqualsMeasurementsWithInt8Gathers) {
  for (const int ranks : {2, 3})
    for (const bool overlap : {false, true}) {
      config::DsConfig c = config_for(ranks, 1, 2);
      c.zero.stage = 3, c.zero.quantized_weights = true, c.zero.overlap_comm = overlap;
      c.zero.allgather_bucket_size = overlap ? 1000 : 500'000'000;
      expect_planned(
          c, ranks, [] { return small_gpt(); }, fmt::format("{} ranks, overlap {}", ranks, overlap));
    }
}

TEST(Plan, ProvesThatTheCallsOfEveryRankFitTogether) {
  for (const char* schedule : {"gpipe", "1f1b", "interleaved", "zb-h1"})
    for (const int stage : {0, 1, 2, 3})
      for (const int64_t near : {1, 2}) {
        config::DsConfig c = config_for(4, 1, 4);
        c.pipeline.stages = 2, c.pipeline.schedule = schedule, c.zero.stage = stage;
        c.pipeline.virtual_stages = std::string(schedule) == "interleaved" ? 2 : 1;
        c.zero.zero_hpz_partition_size = near, c.zero.overlap_comm = stage == 3;
        const plan::CallProof proof =
            plan::prove_calls(8, [&](comm::Communicator& ranks, const runtime::EngineOptions& options) {
              return std::make_unique<runtime::Engine>(c, deep_gpt(false), ranks, options);
            });
        EXPECT_EQ(proof.ranks, 8);
        EXPECT_GT(proof.calls, 8 * 4 * 2);
      }
}

TEST(Plan, HalvesShardedMemoryWhenTheRanksDouble) {
  config::DsConfig c = config_for(1);
  c.zero.stage = 3;
  const Make model = [] { return small_gpt(); };
  // Units are padded to the number of ranks: at most ranks - 1 elements for each of 5 units.
  for (const int ranks : {2, 4, 8}) {
    c.train_batch_size = ranks;
    const MemoryTable half = plan_for(c, ranks, model).ranks[0].memory;
    c.train_batch_size = ranks / 2;
    const MemoryTable whole = plan_for(c, ranks / 2, model).ranks[0].memory;
    for (const Category k : {Category::weights, Category::gradients, Category::optimizer_state}) {
      EXPECT_LE(half.total(k) * 2 - whole.total(k), 2 * 8 * 5 * ranks) << name_of(k) << " on " << ranks;
      EXPECT_GE(half.total(k) * 2, whole.total(k)) << name_of(k) << " on " << ranks;
    }
  }
}

TEST(Plan, ListsEveryRankOnceAndThoseThatDifferApart) {
  config::DsConfig c = config_for(3, 1, 2);
  c.pipeline.stages = 2;
  const plan::JobPlan plan = plan_for(c, 6, [] { return deep_gpt(true); });
  EXPECT_TRUE(plan.tried_all);
  std::vector<int> ranks;
  for (const plan::RankPlan& r : plan.ranks) {
    ranks.insert(ranks.end(), r.ranks.begin(), r.ranks.end());
    for (const int rank : r.ranks) EXPECT_EQ(plan.mesh.place(rank).pipe, r.place.pipe);
  }
  std::sort(ranks.begin(), ranks.end());
  EXPECT_EQ(ranks, (std::vector<int>{0, 1, 2, 3, 4, 5}));
  EXPECT_NE(plan::format(plan).find("mesh: 6 ranks = pipe 2 x data 3 x tensor 1"), std::string::npos);
}

TEST(Plan, OfAThousandRanksTriesTheEndsOfTheAxes) {
  config::DsConfig c = config_for(512, 1, 2);
  c.pipeline.stages = 2, c.zero.stage = 1;
  const plan::JobPlan plan = plan_for(c, 1024, [] { return deep_gpt(true); });
  EXPECT_FALSE(plan.tried_all);
  EXPECT_EQ(of_rank(plan, 0).place.pipe, 0);
  EXPECT_EQ(of_rank(plan, 1023).place.pipe, 1);
}

TEST(Plan, RejectsJobsThatDoNotFitWithTheTable) {
  config::DsConfig c = config_for(2);
  const plan::JobPlan plan = plan_for(c, 2, [] { return small_gpt(); });
  const int64_t need = plan.ranks[0].memory.total(MemoryKind::device);
  EXPECT_NO_THROW(plan.check_fits({.device_bytes = need}));
  expect_error(Exit::memory, {"optimizer_state"}, [&] { plan.check_fits({.device_bytes = need - 1}); });
}

size_t count(const std::string& text, const std::string& what) {
  size_t n = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++n;
  return n;
}

TEST(Plan, AsAPageDrawsEveryComputationAndAllMemory) {
  config::DsConfig c = config_for(2, 2, 5);
  c.pipeline.stages = 3, c.zero.stage = 1;
  plan::JobPlan plan = plan_for(c, 6, Make([] { return deep_gpt(true); }));
  plan.model = "a<b & c";
  const std::string page = plan::to_html(plan);
  // Per stage and micro-batch one forward and one backward in the chart, and the same in the memory picture
  // above.
  EXPECT_EQ(count(page, "<title>forward of micro-batch"), 2u * 3 * 5);
  EXPECT_EQ(count(page, "<title>backward of micro-batch"), 2u * 3 * 5);
  for (const plan::RankPlan& r : plan.ranks) {
    const int frames = plan.timeline.peak_frames[size_t(r.place.pipe)];
    EXPECT_EQ(frames, 3 - r.place.pipe);
    EXPECT_GT(r.frame_bytes, 0);
    EXPECT_LE(frames * r.frame_bytes, r.memory.at(MemoryKind::device, Category::activations));
    EXPECT_NE(page.find(format_bytes(frames * r.frame_bytes)), std::string::npos);
  }
  EXPECT_NE(page.find("a&lt;b &amp; c"), std::string::npos);
  EXPECT_EQ(count(page, "<svg"), count(page, "</svg>"));
  EXPECT_EQ(page.find("http"), std::string::npos) << "the page needs nothing else";
}

TEST(Plan, AsAPageDrawsTheRanksOfItsTablesOnLabelledAxesWithRoundTicks) {
  config::DsConfig c = config_for(2, 2, 5);
  c.pipeline.stages = 3, c.zero.stage = 1;
  const plan::JobPlan plan = plan_for(c, 6, Make([] { return deep_gpt(true); }));
  const std::string page = plan::to_html(plan), tables = plan::format(plan);
  for (const plan::RankPlan* r : plan::largest_of_stages(plan)) {
    EXPECT_NE(page.find(fmt::format("rank {}, stage {}: {} of device memory", r->ranks[0], r->place.pipe,
                                    format_bytes(r->memory.total(MemoryKind::device)))),
              std::string::npos);
    EXPECT_NE(tables.find(fmt::format("\n{:>6}{:>8}{:>14}", r->place.pipe, r->ranks[0],
                                      format_bytes(r->memory.total(MemoryKind::device)))),
              std::string::npos)
        << tables;
    EXPECT_GT(count(page, fmt::format("rank {}: ", r->ranks[0])), 0u);
  }
  EXPECT_EQ(count(page, ">of the step's time<"), 3u + 1);
  EXPECT_EQ(count(page, ">25 %<"), 3u + 1);
  EXPECT_EQ(count(page, ">sent by the rank in one step<"), 1u);
  // Every tick is 1, 2 or 5 times a power of ten, or a multiple of the first tick.
  std::regex tick("text-anchor='(end|middle)'>([0-9.]+) (B|KiB|MiB|GiB)<");
  int64_t ticks = 0;
  for (std::sregex_iterator at(page.begin(), page.end(), tick); at != std::sregex_iterator(); ++at) {
    const std::string number = (*at)[2];
    EXPECT_EQ(number.find('.'), std::string::npos) << number;
    ++ticks;
  }
  EXPECT_GE(ticks, 2 * 4);
}

}  // namespace
}  // namespace cleave::testing
