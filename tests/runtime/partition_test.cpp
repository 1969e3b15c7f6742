// partition_activations: kept layer inputs cut over a tensor axis with whole rows.
#include "pipeline/schedule.h"
#include "tests/runtime/cut_models.h"
#include "tests/sampled.h"
#include "tests/scratch.h"

namespace cleave::testing {
namespace {

runtime::ModelFactory deep(float dropout = 0, int64_t positions = kTokens) {
  return [=](const model::Axes& axes) {
    return model::make_model(model::kGpt2,
                             {.vocab = kVocab,
                              .positions = 32,
                              .width = 16,
                              .layers = 6,
                              .heads = 4,
                              .dropout = dropout,
                              .attention_dropout = dropout},
                             DType::fp32, positions, "deep", axes);
  };
}

config::DsConfig config(const Layout& l, int64_t interval, bool partition, bool to_host = false) {
  config::DsConfig c = config_of(l, 3);
  c.checkpointing = {.interval = interval, .to_host = to_host, .partition = partition};
  return c;
}

TEST(PartitionedActivations, GiveTheBitsOfWholeOnesOnTheDeviceAndOnTheHost) {
  Sampled sampled;
  for (const int pipe : {1, 2})
    for (const std::string& schedule : pipeline::schedule_names()) {
      if (pipe == 1 && schedule != "1f1b") continue;
      const Layout l{pipe, 1, 4 / pipe, 3, schedule.c_str(), false, false};
      const Training want = train_on_all(l, config(l, 0, false), deep(0.3f), 3);
      for (const int64_t interval : {1, 2, 3, 100})
        for (const bool to_host : {false, true})
          for (const Stream::Mode mode : {Stream::Mode::inline_, Stream::Mode::worker}) {
            if (!sampled.next()) continue;
            expect_same_bits(
                train_on_all(l, config(l, interval, true, to_host), deep(0.3f), 3, {.compute = mode}), want,
                fmt::format("{} interval {} host {}", l.text(), interval, to_host));
          }
    }
}

TEST(PartitionedActivations, TakeTheirShareOfTheMemoryAndTwoWholeInputs) {
  const int64_t input = 32 * 16 * 4;  // in bytes, per layer
  const auto memory = [](int tensor, int64_t interval, bool partition, bool to_host = false,
                         bool cut_rows = false) {
    const Layout l{1, 1, tensor, 0, "1f1b", false, cut_rows};
    MemoryTable table;
    comm::run_ranks(l.ranks(), [&](comm::Communicator& world) {
      runtime::Engine engine(config(l, interval, partition, to_host), deep(0, 32), world, {});
      Tokens tokens(1, 32);
      engine.train_batch(source(tokens, engine.config(), 0, 0, 1));
      EXPECT_EQ(engine.memory_planned(), engine.memory_peak());
      if (world.rank() == 0) table = engine.memory_peak();
    });
    return table;
  };
  const auto device = [](const MemoryTable& t) { return t.at(MemoryKind::device, Category::activations); };
  for (const int tensor : {2, 4})
    for (const int64_t interval : {1, 2, 3}) {
      const int64_t inside = ceil_div(int64_t{8}, interval) - 1;  // inputs of groups inside the 8 layers
      const MemoryTable whole = memory(tensor, interval, false), parts = memory(tensor, interval, true),
                        host = memory(tensor, interval, true, true);
      EXPECT_EQ(device(parts), device(whole) - inside * input + inside * input / tensor + 2 * input);
      EXPECT_EQ(device(host), device(whole) - inside * input + 2 * input);
      EXPECT_EQ(host.at(MemoryKind::pinned, Category::activations), inside * input / tensor);
      // If rows are cut, the inputs are already cut.
      EXPECT_EQ(memory(tensor, interval, true, false, true), memory(tensor, interval, false, false, true));
    }
  EXPECT_EQ(memory(1, 2, true), memory(1, 2, false));
}

// Each rank sends its part of each inner input to the others once per micro-batch.
TEST(PartitionedActivations, AreGatheredOnceInEachBackward) {
  const auto gathered = [](bool partition) {
    const Layout l{1, 1, 4, 0, "gpipe", false, false};
    comm::CommBytes bytes;
    comm::run_ranks(l.ranks(), [&](comm::Communicator& world) {
      runtime::Engine engine(config(l, 2, partition), deep(), world, {});
      Tokens tokens(1, kTokens);
      engine.train_batch(source(tokens, engine.config(), 0, 0, 1));
      if (world.rank() == 0) bytes = engine.comm_bytes();
    });
    return bytes[comm::Collective::all_gather];
  };
  // The last of 4 groups of 2 layers is still in memory after its forward.
  const int64_t inside = 2, micros = 3, part = kTokens * 16 * 4 / 4;
  EXPECT_EQ(gathered(true) - gathered(false), micros * inside * 3 * part);
}

TEST(PartitionedActivations, ThatDoNotDivideAreRefused) {
  const Layout l{1, 1, 4, 0, "1f1b", false, false};
  const runtime::ModelFactory odd = [](const model::Axes& axes) {
    return model::make_model(model::kLlama,
                             {.vocab = 5,
                              .positions = 7,
                              .width = 5,
                              .layers = 3,
                              .heads = 4,
                              .kv_heads = 4,
                              .head_dim = 2,
                              .mlp_width = 4},
                             DType::fp32, 7, "odd", axes);
  };
  expect_error(Exit::usage, {"35 elements of a layer input are not divisible by 4"}, [&] {
    comm::run_ranks(
        4, [&](comm::Communicator& world) { runtime::Engine engine(config(l, 1, true), odd, world, {}); });
  });
}

}  // namespace
}  // namespace cleave::testing
