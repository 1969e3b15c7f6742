// Memory of recomputation, to the byte, against closed forms, and its repeated gathers.
#include <gtest/gtest.h>

#include "pipeline/schedule.h"
#include "tests/runtime/small_models.h"
#include "zero/flat_layout.h"

namespace cleave::testing {
namespace {

constexpr int64_t kAll = 100;  // more than the layers of any model here

config::DsConfig pipelined(int data, int zero, int accumulation, const std::string& schedule) {
  config::DsConfig c = config_for(data, 1, accumulation);
  c.zero.stage = zero, c.zero.overlap_comm = zero == 3;
  c.pipeline.stages = 3, c.pipeline.schedule = schedule;
  c.pipeline.virtual_stages = schedule == "interleaved" ? 2 : 1;
  return c;
}

int64_t activations(int64_t interval, int layers) {
  int64_t bytes = 0;
  comm::run_ranks(1, [&](comm::Communicator& world) {
    config::DsConfig c = config_for(1, 2, 2);
    c.checkpointing.interval = interval;
    model::Model model = model::make_model(
        model::kGpt2, {.vocab = kVocab, .positions = 8, .width = 16, .layers = layers, .heads = 2},
        DType::fp32, 8, "even");
    runtime::Engine engine(c, std::move(model), world, {});
    Tokens tokens(2, 8);
    engine.train_batch(source(tokens, c, 0, 0, 1));
    engine.evaluate(source(tokens, c, 1, 0, 1), 2);
    EXPECT_EQ(engine.memory_planned(), engine.memory_peak());
    bytes = engine.memory_live().total(Category::activations);
  });
  return bytes;
}

// A block of width w keeps, in fp32: 2 norms, qkv, attention, middle, hidden and active (15 w per row), 4
// sums of norms and `heads` of attention per row. All sizes here are multiples of 64 bytes. Layers:
// embedding, L blocks, final norm.
TEST(RecomputeMemory, KeepsTheInputsOfGroupsAndMakesOneGroupAtATime) {
  const int64_t rows = 16, width = 16, boundary = rows * width * 4, tokens = rows * 4;
  const int64_t block = 15 * boundary + rows * (4 + 2) * 4;
  for (int blocks : {3, 6, 7})
    for (int64_t interval : {int64_t{1}, int64_t{2}, int64_t{3}, kAll}) {
      const int64_t layers = blocks + 2;
      const int64_t k = std::min(interval, layers), groups = ceil_div(layers, k);
      // The final norm keeps two sums per row.
      const int64_t norm = 2 * rows * 4;
      const auto made = [&](int64_t begin) {
        int64_t bytes = 0;
        for (int64_t l = begin; l < std::min(layers, begin + k); ++l) {
          if (l > begin) bytes += boundary;  // between the layers of a group
          bytes += l == 0 ? 0 : l == layers - 1 ? norm : block;
        }
        return bytes;
      };
      int64_t group = 0;
      for (int64_t begin = 0; begin < layers; begin += k) group = std::max(group, made(begin));
      const int64_t all = tokens + layers * boundary + blocks * block + norm;
      const int64_t kept = tokens + groups * boundary;  // inputs of the groups, and the output
      EXPECT_EQ(activations(0, blocks) - activations(interval, blocks), all - kept - group)
          << blocks << " blocks, interval " << interval;
    }
}

TEST(RecomputeMemory, PlannedEqualsPeakOnEveryRankOfEverySchedule) {
  for (const std::string& schedule : pipeline::schedule_names())
    for (int zero : {1, 3})
      for (int64_t interval : {int64_t{1}, int64_t{2}, kAll})
        comm::run_ranks(6, [&](comm::Communicator& world) {
          config::DsConfig c = pipelined(2, zero, 5, schedule);
          c.checkpointing.interval = interval;
          runtime::Engine engine(c, deep_gpt(true), world, {});
          Tokens tokens(1);
          const int place = engine.mesh().place(world.rank()).data;
          engine.train_batch(source(tokens, c, 0, place, 2));
          engine.evaluate(source(tokens, c, 1, place, 2), 3);
          EXPECT_EQ(engine.memory_planned(), engine.memory_peak()) << schedule << " rank " << world.rank();
          EXPECT_EQ(engine.memory_planned(), engine.memory_live());
        });
}

// All but the first of n group inputs are in pinned memory, and two blocks on the device.
TEST(RecomputeMemory, WithInputsOnTheHostHoldsTwoOfThemOnTheDevice) {
  const int64_t boundary = 2 * 8 * 16 * 4;
  const auto memory = [&](bool to_host, int64_t interval, MemoryLimits limits = {}) {
    MemoryTable table;
    comm::run_ranks(1, [&](comm::Communicator& world) {
      config::DsConfig c = config_for(1, 2, 2);
      c.checkpointing.interval = interval, c.checkpointing.to_host = to_host;
      model::Model model = model::make_model(
          model::kGpt2, {.vocab = kVocab, .positions = 8, .width = 16, .layers = 6, .heads = 2}, DType::fp32,
          8, "even");
      runtime::Engine engine(c, std::move(model), world, {.limits = limits});
      Tokens tokens(2, 8);
      engine.train_batch(source(tokens, c, 0, 0, 1));
      engine.evaluate(source(tokens, c, 1, 0, 1), 2);
      EXPECT_EQ(engine.memory_planned(), engine.memory_peak());
      EXPECT_EQ(engine.memory_planned(), engine.memory_live());
      table = engine.memory_live();
    });
    return table;
  };
  for (int64_t interval : {1, 2, 3}) {
    const int64_t inside = ceil_div(int64_t{8}, interval) - 1;  // inputs of groups inside the 8 layers
    const MemoryTable device = memory(false, interval), host = memory(true, interval);
    EXPECT_EQ(device.at(MemoryKind::pinned, Category::activations), 0);
    EXPECT_EQ(host.at(MemoryKind::pinned, Category::activations), inside * boundary);
    EXPECT_EQ(device.at(MemoryKind::device, Category::activations) -
                  host.at(MemoryKind::device, Category::activations),
              (inside - 2) * boundary);
  }
  const int64_t needs = memory(true, 1).total(MemoryKind::device);
  memory(true, 1, {.device_bytes = needs});
  EXPECT_THROW(memory(false, 1, {.device_bytes = needs}), Error);
}

// GPT drops the outputs of two norms and of the activation function, 6 widths per row and block; Llama those
// of two norms and of the gated unit.
TEST(RecomputeMemory, SelectivelyKeepsTheFormulasBytesLess) {
  const auto frames = [](const std::function<model::Model()>& model, bool lean) {
    int64_t bytes = 0;
    comm::run_ranks(1, [&](comm::Communicator& world) {
      config::DsConfig c = config_for(1, 2, 2);
      c.checkpointing.lean = lean;
      runtime::Engine engine(c, model(), world, {});
      Tokens tokens(2, 8);
      engine.train_batch(source(tokens, c, 0, 0, 1));
      EXPECT_EQ(engine.memory_planned(), engine.memory_peak());
      bytes = engine.memory_live().total(Category::activations);
    });
    return bytes;
  };
  const int64_t rows = 16;
  const auto saved = [&](const auto& model) {
    const auto of = [&](int blocks, bool lean) { return frames([&] { return model(blocks); }, lean); };
    // Difference of two blocks, to cancel scratch.
    return (of(5, false) - of(3, false)) - (of(5, true) - of(3, true));
  };
  EXPECT_EQ(saved([](int blocks) {
              return model::make_model(
                  model::kGpt2, {.vocab = kVocab, .positions = 8, .width = 16, .layers = blocks, .heads = 2},
                  DType::fp32, 8, "even");
            }),
            2 * rows * 6 * 16 * 4);
  EXPECT_EQ(saved([](int blocks) {
              return model::make_model(model::kLlama,
                                       {.vocab = kVocab,
                                        .positions = 8,
                                        .width = 16,
                                        .layers = blocks,
                                        .heads = 2,
                                        .kv_heads = 1,
                                        .head_dim = 8,
                                        .mlp_width = 32},
                                       DType::fp32, 8, "even");
            }),
            2 * rows * (2 * 16 + 32) * 4);
}

// With interval 1 a layer's forward and backward share a gather. Larger groups gather all but their last
// layer a second time, except for the last group, which is still in memory.
TEST(RecomputeMemory, GathersALayerAgainOnlyIfOthersRunInBetween) {
  const auto gathered = [](int64_t interval) {
    int64_t bytes = 0;
    comm::run_ranks(2, [&](comm::Communicator& world) {
      config::DsConfig c = config_for(2, 1, 1);
      c.zero.stage = 3;
      c.checkpointing.interval = interval;
      model::Model model = model::make_model(
          model::kGpt2, {.vocab = kVocab, .positions = 11, .width = 12, .layers = 6, .heads = 3}, DType::fp32,
          kSeq, "even");
      runtime::Engine engine(c, std::move(model), world, {});
      const int64_t before = engine.comm_bytes()[comm::Collective::all_gather];
      Tokens tokens(1);
      engine.train_batch(source(tokens, c, 0, world.rank(), 2));
      if (world.rank() == 0) bytes = engine.comm_bytes()[comm::Collective::all_gather] - before;
    });
    return bytes;
  };
  const model::Model model = model::make_model(
      model::kGpt2, {.vocab = kVocab, .positions = 11, .width = 12, .layers = 6, .heads = 3}, DType::fp32,
      kSeq, "even");
  const auto bytes_of = [&](size_t layer) {
    int64_t n = 0;
    for (const UnitSpec& u : model.layers[layer]->units()) n += zero::FlatLayout(u, 2).numel();
    return n / 2 * 4;
  };
  const int64_t plain = gathered(0);
  EXPECT_EQ(gathered(1), plain);
  EXPECT_EQ(gathered(kAll), plain);
  // Layers 0 to 7 in groups 012 345 67: the backward gathers 3, 4 and 0, 1 twice.
  EXPECT_EQ(gathered(3), plain + bytes_of(3) + bytes_of(4) + bytes_of(0) + bytes_of(1));
}

}  // namespace
}  // namespace cleave::testing
