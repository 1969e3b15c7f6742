// Activation checkpointing: the same bits as keeping everything, in the memory that the formula says.
#include "runtime/recompute.h"

#include "zero/flat_layout.h"

#include "tests/runtime/compare.h"

namespace cleave::testing {
namespace {

DsConfig config(int data, int zero, int accumulation, int stages = 1, const std::string& schedule = "1f1b") {
  DsConfig c = config_for(data, 1, accumulation);
  c.zero.stage = zero, c.zero.overlap_comm = zero == 3;
  c.pipeline.stages = stages, c.pipeline.schedule = schedule;
  c.pipeline.virtual_stages = schedule == "interleaved" && stages > 1 ? 2 : 1;
  return c;
}

void use(DsConfig& c, Precision precision) {
  c.precision = precision;
  c.fp16.enabled = precision == Precision::fp16, c.fp16.initial_scale_power = 10;
}

DType type_of(Precision p) {
  return p == Precision::fp32 ? DType::fp32 : p == Precision::bf16 ? DType::bf16 : DType::fp16;
}

constexpr int64_t kAll = 100;  // more than any model here has layers

TEST(BackwardStops, RunEachGroupAgainBeforeItsBackwardAndTheLastLayerOfItInOneStop) {
  using Stops = std::vector<Stop>;
  const Stop head{5, false, true};
  const auto again = [](int l) { return Stop{l, true, false}; };
  const auto both = [](int l) { return Stop{l, true, true}; };
  const auto back = [](int l) { return Stop{l, false, true}; };
  EXPECT_EQ(backward_stops(3, {}, false, false), (Stops{back(2), back(1), back(0)}));
  EXPECT_EQ(backward_stops(3, {.interval = 1}, false, false), (Stops{both(2), both(1), both(0)}));
  EXPECT_EQ(backward_stops(5, {.interval = 2}, true, false),
            (Stops{head, both(4), again(2), both(3), back(2), again(0), both(1), back(0)}));
  EXPECT_EQ(backward_stops(5, {.interval = 3}, true, true),
            (Stops{head, back(4), back(3), again(0), again(1), both(2), back(1), back(0)}));
  EXPECT_EQ(backward_stops(2, {.interval = kAll}, false, true), (Stops{back(1), back(0)}));
}

TEST(BackwardStops, ANumberOfCheckpointsIsAnIntervalOfTheWholeModel) {
  EXPECT_EQ(recompute_of({.number = 3}, 8).interval, 3);
  EXPECT_EQ(recompute_of({.number = 100}, 8).interval, 1);
  EXPECT_EQ(recompute_of({.interval = 2}, 8).interval, 2);
  EXPECT_EQ(recompute_of({}, 8).interval, 0);
}

struct Setting {
  int pipe, data, zero, accumulation;
  const char* schedule;
  Precision precision;
  float dropout;
};

// Every ZeRO stage, schedule, type and dropout with every interval; the deep model has 8 layers.
TEST(Recompute, GivesTheBitsOfKeepingEverything) {
  std::vector<Setting> settings;
  for (int zero : {0, 1, 2, 3})
    for (const Precision p : {Precision::fp32, Precision::bf16, Precision::fp16})
      settings.push_back({1, 2, zero, 2, "1f1b", p, zero % 2 ? 0.3f : 0.0f});
  for (const std::string& schedule : schedule_names())
    for (int zero : {0, 2, 3})
      for (const Precision p : {Precision::fp32, Precision::bf16})
        settings.push_back({3, zero == 0 ? 1 : 2, zero, 4, schedule.c_str(), p, zero == 2 ? 0.0f : 0.3f});
  for (const Setting& s : settings)
    for (bool tied : {false, true}) {
      if (tied && s.precision == Precision::fp16) continue;
      DsConfig c = config(s.data, s.zero, s.accumulation, s.pipe, s.schedule);
      use(c, s.precision);
      const auto run = [&] {
        return train_on(
            s.pipe * s.data, c, [&] { return deep_gpt(tied, type_of(s.precision), s.dropout); }, 2);
      };
      const Training want = run();
      for (int64_t interval : {int64_t{1}, int64_t{2}, int64_t{3}, kAll}) {
        c.checkpointing.interval = interval;
        expect_same_bits(run(), want,
                         fmt::format("pipe {} zero {} {} precision {} dropout {} tied {} interval {}", s.pipe,
                                     s.zero, s.schedule, int(s.precision), s.dropout, tied, interval));
      }
    }
}

TEST(Recompute, GivesTheBitsOfKeepingEverythingForLlamaWorkerStreamsAndOffload) {
  for (int zero : {1, 3}) {
    DsConfig c = config(2, zero, 3);
    c.zero.offload_optimizer.device = "cpu", c.zero.overlap_comm = true;
    const Training want = train_on(
        2, c, [] { return small_llama(); }, 3);
    for (int64_t interval : {int64_t{1}, int64_t{2}, kAll}) {
      c.checkpointing.interval = interval;
      for (const Stream::Mode mode : {Stream::Mode::inline_, Stream::Mode::worker})
        expect_same_bits(train_on(2, c, [] { return small_llama(); }, 3, {.compute = mode}), want,
                         fmt::format("zero {} interval {}", zero, interval));
    }
  }
}

int64_t activations(int64_t interval, int layers) {
  int64_t bytes = 0;
  run_ranks(1, [&](Communicator& world) {
    DsConfig c = config_for(1, 2, 2);
    c.checkpointing.interval = interval;
    Model model = make_gpt({.vocab = kVocab, .positions = 8, .width = 16, .layers = layers, .heads = 2},
                           DType::fp32, 8, "even");
    Engine engine(c, std::move(model), world, {});
    Tokens tokens(2, 8);
    engine.train_batch(source(tokens, c, 0, 0, 1));
    engine.evaluate(source(tokens, c, 1, 0, 1), 2);
    EXPECT_EQ(engine.memory_planned(), engine.memory_peak());
    bytes = engine.memory_live().total(Category::activations);
  });
  return bytes;
}

// A block of width w keeps, in fp32: 2 norms, qkv, attention, middle, hidden and
// active (15 w a row), 4 sums of norms and `heads` of attention a row. All sizes here are multiples of 64
// bytes. Layers: embedding, L blocks, final norm.
TEST(Recompute, KeepsTheInputsOfGroupsAndMakesOneGroupAtATime) {
  const int64_t rows = 16, width = 16, boundary = rows * width * 4, tokens = rows * 4;
  const int64_t block = 15 * boundary + rows * (4 + 2) * 4;
  for (int blocks : {3, 6, 7})
    for (int64_t interval : {int64_t{1}, int64_t{2}, int64_t{3}, kAll}) {
      const int64_t layers = blocks + 2;
      const int64_t k = std::min(interval, layers), groups = ceil_div(layers, k);
      // The final norm keeps two sums a row.
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

TEST(Recompute, PlannedEqualsPeakOnEveryRankOfEverySchedule) {
  for (const std::string& schedule : schedule_names())
    for (int zero : {1, 3})
      for (int64_t interval : {int64_t{1}, int64_t{2}, kAll})
        run_ranks(6, [&](Communicator& world) {
          DsConfig c = config(2, zero, 5, 3, schedule);
          c.checkpointing.interval = interval;
          Engine engine(c, deep_gpt(true), world, {});
          Tokens tokens(1);
          const int place = engine.mesh().place(world.rank()).data;
          engine.train_batch(source(tokens, c, 0, place, 2));
          engine.evaluate(source(tokens, c, 1, place, 2), 3);
          EXPECT_EQ(engine.memory_planned(), engine.memory_peak()) << schedule << " rank " << world.rank();
          EXPECT_EQ(engine.memory_planned(), engine.memory_live());
        });
}

TEST(Recompute, WithInputsOnTheHostGivesTheBitsOfKeepingEverything) {
  for (int zero : {0, 3})
    for (int pipe : {1, 2})
      for (const std::string& schedule : schedule_names()) {
        DsConfig c = config(2, zero, 3, pipe, schedule);
        const auto run = [&](Stream::Mode mode) {
          return train_on(2 * pipe, c, [] { return deep_gpt(false, DType::fp32, 0.3f); }, 3,
                          {.compute = mode});
        };
        const Training want = run(Stream::Mode::inline_);
        c.checkpointing.to_host = true;
        for (int64_t interval : {int64_t{1}, int64_t{2}, int64_t{3}, kAll}) {
          c.checkpointing.interval = interval;
          for (const Stream::Mode mode : {Stream::Mode::inline_, Stream::Mode::worker})
            expect_same_bits(run(mode), want,
                             fmt::format("zero {} pipe {} {} interval {}", zero, pipe, schedule, interval));
        }
      }
}

// Of the inputs of n groups, all but the first are in pinned memory, and two blocks on the device.
TEST(Recompute, WithInputsOnTheHostHoldsTwoOfThemOnTheDevice) {
  const int64_t boundary = 2 * 8 * 16 * 4;
  const auto memory = [&](bool to_host, int64_t interval, MemoryLimits limits = {}) {
    MemoryTable table;
    run_ranks(1, [&](Communicator& world) {
      DsConfig c = config_for(1, 2, 2);
      c.checkpointing.interval = interval, c.checkpointing.to_host = to_host;
      Model model = make_gpt({.vocab = kVocab, .positions = 8, .width = 16, .layers = 6, .heads = 2},
                             DType::fp32, 8, "even");
      Engine engine(c, std::move(model), world, {.limits = limits});
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

TEST(Recompute, SelectivelyGivesTheBitsOfKeepingEverything) {
  for (const Precision p : {Precision::fp32, Precision::bf16, Precision::fp16})
    for (int zero : {0, 3})
      for (const std::string& schedule : schedule_names())
        for (const auto& model :
             {+[](DType t) { return deep_gpt(false, t, 0.3f); }, +[](DType t) { return small_llama(t); }}) {
          DsConfig c = config(1, zero, 3, 2, schedule);
          if (model(DType::fp32).layers.size() < 5) c.pipeline.virtual_stages = 1;
          use(c, p);
          const auto run = [&] {
            return train_on(
                2, c, [&] { return model(type_of(p)); }, 2);
          };
          const Training want = run();
          c.checkpointing.lean = true;
          expect_same_bits(run(), want, fmt::format("{} zero {} precision {}", schedule, zero, int(p)));
        }
}

// GPT drops the outputs of two norms and of the activation function, 6 widths a row and block; Llama those of
// two norms and of the gated unit.
TEST(Recompute, SelectivelyKeepsTheFormulasBytesLess) {
  const auto frames = [](const std::function<Model()>& model, bool lean) {
    int64_t bytes = 0;
    run_ranks(1, [&](Communicator& world) {
      DsConfig c = config_for(1, 2, 2);
      c.checkpointing.lean = lean;
      Engine engine(c, model(), world, {});
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
    // Of two more blocks, so that scratch does not count.
    return (of(5, false) - of(3, false)) - (of(5, true) - of(3, true));
  };
  EXPECT_EQ(saved([](int blocks) {
              return make_gpt({.vocab = kVocab, .positions = 8, .width = 16, .layers = blocks, .heads = 2},
                              DType::fp32, 8, "even");
            }),
            2 * rows * 6 * 16 * 4);
  EXPECT_EQ(saved([](int blocks) {
              return make_llama({.vocab = kVocab,
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

// With interval 1 a layer's forward and backward share a gather; groups of more layers gather all but their
// last a second time, except those of the last group, which are still there.
TEST(Recompute, GathersALayerAgainOnlyWhereOthersRunInBetween) {
  const auto gathered = [](int64_t interval) {
    int64_t bytes = 0;
    run_ranks(2, [&](Communicator& world) {
      DsConfig c = config_for(2, 1, 1);
      c.zero.stage = 3;
      c.checkpointing.interval = interval;
      Model model = make_gpt({.vocab = kVocab, .positions = 11, .width = 12, .layers = 6, .heads = 3},
                             DType::fp32, kSeq, "even");
      Engine engine(c, std::move(model), world, {});
      const int64_t before = engine.comm_bytes()[Collective::all_gather];
      Tokens tokens(1);
      engine.train_batch(source(tokens, c, 0, world.rank(), 2));
      if (world.rank() == 0) bytes = engine.comm_bytes()[Collective::all_gather] - before;
    });
    return bytes;
  };
  const Model model = make_gpt({.vocab = kVocab, .positions = 11, .width = 12, .layers = 6, .heads = 3},
                               DType::fp32, kSeq, "even");
  const auto bytes_of = [&](size_t layer) {
    int64_t n = 0;
    for (const UnitSpec& u : model.layers[layer]->units()) n += FlatLayout(u, 2).numel();
    return n / 2 * 4;
  };
  const int64_t plain = gathered(0);
  EXPECT_EQ(gathered(1), plain);
  EXPECT_EQ(gathered(kAll), plain);
  // Layers 0 to 7 in groups 012 345 67: in the backward 3, 4 and 0, 1 are gathered twice.
  EXPECT_EQ(gathered(3), plain + bytes_of(3) + bytes_of(4) + bytes_of(0) + bytes_of(1));
}

}  // namespace
}  // namespace cleave::testing
