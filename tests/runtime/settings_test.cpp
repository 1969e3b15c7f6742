// Settings are a pure function: effect of each configuration key, without a rank, a stream or memory.
#include "runtime/step/settings.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/runtime/small_models.h"

namespace cleave::testing {
namespace {

runtime::RankUnits units_of(const model::Model& model, int uses = 1) {
  return runtime::whole_units(model.name, model.units(), uses);
}

constexpr Device kGpu{Device::Kind::cuda, 0};

runtime::Settings settings_of(const config::DsConfig& c, const MeshShape& mesh = {}, int rank = 0,
                              const runtime::EngineOptions& options = {}) {
  return runtime::make_settings(c, mesh, rank, options);
}

TEST(Settings, TakeTheAverageAsConfigured) {
  config::DsConfig c = config_for(4, 1, 2);  // 2 micro-batches on 4 ranks: a weight of 1/8 each
  const MeshShape four{.data = 4};
  EXPECT_EQ(settings_of(c, four).average, (runtime::Averaging{1.0 / 8, 1}));
  c.gradient_predivide_factor = 2;  // half of the ranks' share before the sum, half after
  EXPECT_EQ(settings_of(c, four).average, (runtime::Averaging{1.0 / 4, 2.0 / 4}));
  c.prescale_gradients = true;  // all before
  EXPECT_EQ(settings_of(c, four).average, (runtime::Averaging{1.0 / 8, 1}));
  c.prescale_gradients = false, c.exact_sums = true;  // rounded values must depend on the micro-batches only
  EXPECT_EQ(settings_of(c, four).average, (runtime::Averaging{1.0 / 8, 1}));
  c.exact_sums = false, c.gradient_sum = true;  // sum over ranks
  EXPECT_EQ(settings_of(c, four).average, (runtime::Averaging{1.0 / 2, 1}));
}

TEST(Settings, DoNotCountRanksOfASequenceOrOfAPipeInTheAverage) {
  const config::DsConfig c = config_for(2);
  const MeshShape mesh{.pipe = 2, .data = 2, .sequence = 2, .tensor = 2};
  EXPECT_EQ(settings_of(c, mesh).average, (runtime::Averaging{1.0 / 2, 1}));
}

TEST(Settings, WaitForTheNormIfAStepMayBeClippedOrSkipped) {
  config::DsConfig c = config_for(1);
  c.gradient_clipping = 0;
  EXPECT_FALSE(settings_of(c).norm_first);
  const auto with = [&](auto change) {
    config::DsConfig changed = c;
    change(changed);
    return settings_of(changed).norm_first;
  };
  EXPECT_TRUE(with([](config::DsConfig& d) { d.gradient_clipping = 1; }));
  EXPECT_TRUE(with([](config::DsConfig& d) { d.precision = config::Precision::fp16; }));
  EXPECT_TRUE(with([](config::DsConfig& d) { d.precision = config::Precision::bf16; }));
  EXPECT_FALSE(with(
      [](config::DsConfig& d) { d.precision = config::Precision::bf16, d.check_grad_overflow = false; }));
  EXPECT_TRUE(with([](config::DsConfig& d) { d.exact_sums = true; }));
  EXPECT_FALSE(settings_of(c).writes_overflows);
  c.precision = config::Precision::bf16, c.check_grad_overflow = false;
  EXPECT_TRUE(settings_of(c).writes_overflows);
  c.exact_sums = true;
  EXPECT_FALSE(settings_of(c).writes_overflows);
}

// Depends only on device and type, not on free memory, stage or mesh, so that numbers do not depend on these.
TEST(Settings, ChooseTheChunkOfLogitsByDeviceAndType) {
  const auto chunk = [](config::Precision p, Device device, auto change) {
    config::DsConfig c = config_for(1);
    c.precision = p;
    change(c);
    return settings_of(c, {}, 0, {.device = device}).logits;
  };
  const auto as_it_is = [](config::DsConfig&) {};
  constexpr int64_t kMiB = 1 << 20;
  EXPECT_EQ(chunk(config::Precision::bf16, {}, as_it_is), model::LogitsChunk{});
  EXPECT_EQ(model::LogitsChunk{}.bytes, 128 * kMiB);
  EXPECT_EQ(model::LogitsChunk{}.type, DType::fp32);
  EXPECT_EQ(chunk(config::Precision::bf16, kGpu, as_it_is),
            (model::LogitsChunk{4096, 2048 * kMiB, DType::bf16, 16 * kMiB}));
  EXPECT_EQ(chunk(config::Precision::fp16, kGpu, as_it_is),
            (model::LogitsChunk{4096, 2048 * kMiB, DType::fp16, 16 * kMiB}));
  EXPECT_EQ(chunk(config::Precision::fp32, kGpu, as_it_is),
            (model::LogitsChunk{4096, 2048 * kMiB, DType::fp32, 16 * kMiB}));
  EXPECT_EQ(chunk(config::Precision::bf16, kGpu,
                  [](config::DsConfig& c) { c.logits_dtype = config::LogitsType::fp32; })
                .type,
            DType::fp32);
  EXPECT_EQ(chunk(config::Precision::bf16, {},
                  [](config::DsConfig& c) { c.logits_dtype = config::LogitsType::model; })
                .type,
            DType::bf16);
  for (const Device device : {Device{}, kGpu}) {
    const model::LogitsChunk asked =
        chunk(config::Precision::bf16, device, [](config::DsConfig& c) { c.logits_rows = 9000; });
    EXPECT_EQ(asked.rows, 9000);
    EXPECT_EQ(asked.rows_of(9000, int64_t{1} << 40, 8), 9000) << "an explicit value is not reduced";
    const auto with = [&](auto change) { return chunk(config::Precision::bf16, device, change); };
    EXPECT_EQ(with([](config::DsConfig& c) { c.zero.stage = 3; }), with(as_it_is));
    EXPECT_EQ(with([](config::DsConfig& c) { c.train_micro_batch_size_per_gpu = 64; }), with(as_it_is));
  }
  // Equal chunks of 65,536 and 32,768 rows on a GPU: GPT-2 124M's input asks for 21,845, and 2 GiB hold
  // 21,345; Qwen2.5 1.5B's asks for 10,922, and 2 GiB hold 7,067; a width of 4,096 asks for no more.
  const model::LogitsChunk gpu = chunk(config::Precision::bf16, kGpu, as_it_is);
  EXPECT_EQ(gpu.rows_of(65536, 50304 * 2, 768), 16384);
  EXPECT_EQ(gpu.rows_of(32768, 151936 * 2, 1536), 6554);
  EXPECT_EQ(gpu.rows_of(32768, 128256 * 2, 4096), 4096);
}

struct Homes {
  int stage;
  config::OffloadDevice optimizer, param;
  double ratio;
  MemoryKind parameters, gradients, state;
};

TEST(Settings, GiveEachKindOfStateItsHome) {
  using enum MemoryKind;
  using enum config::OffloadDevice;
  const Homes rows[] = {
      {0, none, none, 1, device, device, device},
      {1, cpu, none, 1, device, device, pinned},    // gradients are whole on the device
      {2, cpu, none, 1, device, pinned, pinned},    // gradient shards live with their reader
      {2, cpu, none, 0.5, device, device, pinned},  // half of the state is updated on the device
      {2, nvme, none, 1, device, pinned, disk},     // never on disk
      {3, none, cpu, 1, pinned, device, device},
      {3, none, nvme, 1, disk, device, device},
      {2, none, cpu, 1, device, device, device},  // below stage 3 every rank has whole parameters
  };
  for (const Homes& row : rows) {
    config::DsConfig c = config_for(2);
    c.zero.stage = row.stage;
    c.zero.offload_optimizer.device = row.optimizer, c.zero.offload_optimizer.ratio = row.ratio;
    c.zero.offload_param.device = row.param;
    const runtime::Settings s = settings_of(c, {.data = 2});
    const auto what = fmt::format("stage {}, optimizer {}, param {}", row.stage, name_of(row.optimizer),
                                  name_of(row.param));
    EXPECT_EQ(s.shard_home.parameters, row.parameters) << what;
    EXPECT_EQ(s.shard_home.gradients, row.gradients) << what;
    EXPECT_EQ(s.state_home.optimizer, row.state) << what;
  }
}

TEST(Settings, UsePageableMemoryWithoutPinning) {
  config::DsConfig c = config_for(2);
  c.zero.stage = 3;
  c.zero.offload_optimizer.device = c.zero.offload_param.device = config::OffloadDevice::cpu;
  c.zero.offload_optimizer.pin_memory = c.zero.offload_param.pin_memory = false;
  const runtime::Settings s = settings_of(c, {.data = 2});
  EXPECT_EQ(s.shard_home.parameters, MemoryKind::host);
  EXPECT_EQ(s.shard_home.gradients, MemoryKind::host);
  EXPECT_EQ(s.state_home.optimizer, MemoryKind::host);
}

TEST(Settings, CutStateOnDiskIntoTilesOfAtMostASubGroup) {
  config::DsConfig c = config_for(2);
  c.zero.offload_optimizer = {
      .device = config::OffloadDevice::nvme, .nvme_path = "/mnt/fast", .buffer_count = 6};
  c.zero.sub_group_size = 1000;
  c.aio = {.block_size = 4096, .queue_depth = 3, .intra_op_parallelism = 2};
  const offload::DiskHome disk = settings_of(c, {.data = 2}, 1).state_home.disk;
  EXPECT_EQ(disk.folder, "/mnt/fast");
  EXPECT_EQ(disk.name, "the optimizer state of rank 1");
  EXPECT_EQ(disk.tile_numel, 1000);
  EXPECT_EQ(disk.buffers, 6);
  EXPECT_EQ(disk.options.block_bytes, 4096);
  EXPECT_EQ(disk.options.queue_depth, 3);
  EXPECT_EQ(disk.options.threads, 2);
  c.zero.sub_group_size = int64_t{1} << 40;
  EXPECT_EQ(settings_of(c).state_home.disk.tile_numel, offload::DiskHome{}.tile_numel);
}

TEST(Settings, ShareShardsAmongNearRanksInTheAskedWay) {
  config::DsConfig c = config_for(4);
  c.zero.stage = 3;
  EXPECT_EQ(settings_of(c, {.data = 4}).sharding, runtime::ShardingKind::by_stage);
  c.zero.zero_hpz_partition_size = 2;
  EXPECT_EQ(settings_of(c, {.data = 4}).sharding, runtime::ShardingKind::nested);
  // Without training only parameters are shared.
  EXPECT_EQ(settings_of(c, {.data = 4}, 0, {.inference = true}).sharding, runtime::ShardingKind::hybrid);
  c.zero.mics_shard_size = 2;
  EXPECT_EQ(settings_of(c, {.data = 4}).sharding, runtime::ShardingKind::hybrid);
  EXPECT_EQ(settings_of(c, {.data = 2, .sequence = 2}).near_ranks, 2);  // ranks of a sequence also share
  try {
    settings_of(c, {.data = 3});
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_EQ(e.exit(), Exit::usage);
    EXPECT_STREQ(e.what(),
                 "mics_shard_size, zero_hpz_partition_size: groups of 2 near ranks do not divide the 3 "
                 "data-parallel ranks");
  }
}

TEST(Settings, ExplainMissingGraphsOnlyIfRequested) {
  config::DsConfig c = config_for(1);
  EXPECT_EQ(settings_of(c).graphs_note, "");
  c.cuda_graphs = config::Switch::on;
  EXPECT_EQ(settings_of(c).graphs_note, "CUDA graphs: not used: this rank computes on the CPU");
  EXPECT_FALSE(settings_of(c).graphs);
  const runtime::EngineOptions gpu{.device = kGpu};
  EXPECT_EQ(settings_of(c, {}, 0, gpu).graphs, Graphs::Use::always);
  EXPECT_EQ(settings_of(c, {.data = 2}, 0, gpu).graphs_note,
            "CUDA graphs: not used: the ranks talk to each other within a pass");
  EXPECT_FALSE(settings_of(c, {}, 0, {.device = kGpu, .inference = true}).graphs);
  c.cuda_graphs = config::Switch::automatic;
  EXPECT_EQ(settings_of(c, {}, 0, gpu).graphs, Graphs::Use::measured);
  EXPECT_EQ(settings_of(c, {.data = 2}, 0, gpu).graphs_note, "");
  c.zero.offload_optimizer.device = config::OffloadDevice::cpu;
  EXPECT_FALSE(settings_of(c, {}, 0, gpu).graphs);
  EXPECT_FALSE(settings_of(c, {}, 0, gpu).update_runs_on);
}

TEST(Settings, OverlapRowTransfersOnAGpuByDefault) {
  config::DsConfig c = config_for(1);
  const MeshShape cut{.tensor = 2};
  EXPECT_FALSE(settings_of(c, cut).rows_overlap);
  EXPECT_TRUE(settings_of(c, cut, 0, {.device = kGpu}).rows_overlap);
  EXPECT_FALSE(settings_of(c, {.data = 2}, 0, {.device = kGpu}).rows_overlap);
  c.tensor_parallel.tp_overlap_comm = true;
  EXPECT_TRUE(settings_of(c, cut).rows_overlap);
}

TEST(Settings, RoundMovedMemoryIfGpusShareStateAndRegisterBuffers) {
  const auto granule = [](MeshShape mesh, Device device) {
    return settings_of(config_for(mesh.sharers()), mesh, 0, {.device = device}).moved_granularity;
  };
  EXPECT_EQ(granule({.data = 2}, Device::cuda(0)), 1);
  setenv("CLEAVE_NCCL_REGISTER", "on", 1);
  EXPECT_EQ(granule({.data = 2}, Device::cuda(0)), int64_t{2} << 20);
  EXPECT_EQ(granule({.data = 2}, Device{}), 1);
  EXPECT_EQ(granule({.pipe = 2}, Device::cuda(0)), 1) << "no rank to share with";
  unsetenv("CLEAVE_NCCL_REGISTER");
}

TEST(Settings, OfAStoreHaveTheTypesThatKeysName) {
  config::DsConfig c = config_for(1);
  c.precision = config::Precision::bf16;
  const runtime::RankUnits model = units_of(small_gpt());
  zero::StoreOptions o = runtime::store_options(settings_of(c), model);
  EXPECT_EQ(o.weights, DType::bf16);
  EXPECT_EQ(o.gradients, DType::bf16);
  EXPECT_EQ(o.wire, DType::bf16);
  c.grad_accum_dtype = config::Precision::fp32;  // the wire type follows the accumulation type ...
  o = runtime::store_options(settings_of(c), model);
  EXPECT_EQ(o.gradients, DType::fp32);
  EXPECT_EQ(o.wire, DType::fp32);
  c.communication_data_type = config::Precision::fp16;  // ... unless it is set as well
  EXPECT_EQ(runtime::store_options(settings_of(c), model).wire, DType::fp16);
  c.zero.stage3_prefetch_bucket_size = 0;
  EXPECT_EQ(runtime::store_options(settings_of(c), model).prefetch_visits, 0);
  const MeshShape cut{.tensor = 2};
  EXPECT_TRUE(runtime::store_options(settings_of(c, cut, 0), model).behind.empty());
  EXPECT_EQ(runtime::store_options(settings_of(c, cut, 1), model).behind, AxisSet{Axis::tensor});
}

TEST(Settings, LeaveRoomForEveryContributionToAnExactSum) {
  config::DsConfig c = config_for(2, 1, 3);
  c.exact_sums = true, c.exact_sums_grid = 40;
  const zero::StoreOptions o =
      runtime::store_options(settings_of(c, {.data = 2, .tensor = 2}), units_of(small_gpt(), 2));
  EXPECT_TRUE(o.exact());
  EXPECT_EQ(o.grid, 40);
  // 3 micro-batches, 2 data-parallel and 2 tensor ranks, and a tied unit with two uses: their sum stays below
  // 2^62.
  EXPECT_LE(o.limit * 3 * 2 * 2 * 2, std::ldexp(1.0, 62));
  EXPECT_GT(o.limit * 3 * 2 * 2 * 3, std::ldexp(1.0, 62));
}

TEST(Settings, OfInferenceHaveNothingThatOnlyTrainingReads) {
  config::DsConfig c = config_for(2, 1, 4);
  c.zero.stage = 2;
  c.zero.offload_optimizer.device = config::OffloadDevice::cpu;
  c.exact_sums = true, c.grad_accum_dtype = config::Precision::fp32;
  const runtime::Settings s = settings_of(c, {.data = 2}, 0, {.inference = true});
  EXPECT_FALSE(s.trains);
  EXPECT_EQ(s.stage, 0);
  EXPECT_EQ(s.micros, 1);
  EXPECT_EQ(s.state_home.optimizer, MemoryKind::device);
  EXPECT_EQ(runtime::store_options(s, units_of(small_gpt())).gradients, DType::fp32);
  EXPECT_FALSE(runtime::store_options(s, units_of(small_gpt())).exact());
}

}  // namespace
}  // namespace cleave::testing
