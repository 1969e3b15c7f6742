// Inference engines: evaluation and prediction in every layout, and memory.
#include "tests/runtime/inference.h"
#include "tests/runtime/homes.h"

namespace cleave::testing {
namespace {

constexpr int kMicros = 24;  // per evaluation, over the ranks of the data axis; more than are in flight

struct Seen {
  double loss = 0;
  std::vector<float> logits, row;
};

Seen look(runtime::Engine& engine, comm::Communicator& world) {
  Tokens tokens(engine.samples_per_micro(), kTokens);
  const MeshPlace place = engine.mesh().place(world.rank());
  const int ranks = engine.mesh().data, micros = kMicros / ranks;
  Seen seen;
  seen.loss = engine
                  .evaluate(
                      [&](int micro) {
                        return tokens.at(9, (micro * ranks + place.data) * engine.samples_per_micro());
                      },
                      micros)
                  .loss;
  seen.logits = engine.predict(tokens.at(3, 0));
  seen.row = engine.predict(tokens.at(3, 0), Range{5, 6});
  return seen;
}

// Results of a short training, once per model, as seen by the training engine.
struct Trained {
  std::string folder;
  Seen seen;
};
Trained train_once(const runtime::ModelFactory& model, const std::string& name,
                   config::Precision type = config::Precision::fp32) {
  Trained out{folder().path(name), {}};
  const config::DsConfig c = in_type(config_of({}, 2), type);
  comm::run_ranks(1, [&](comm::Communicator& world) {
    runtime::Engine engine(c, model, world, {});
    train(engine, world, 3, kTokens);
    engine.save_checkpoint(out.folder, "t");
    out.seen = look(engine, world);
  });
  return out;
}

// Expects equal results on every rank.
Seen look_as(const Layout& l, const config::DsConfig& c, const runtime::ModelFactory& model,
             const std::string& checkpoint) {
  std::vector<Seen> seen{size_t(l.ranks())};
  comm::run_ranks(l.ranks(), [&](comm::Communicator& world) {
    runtime::Engine engine(c, model, world, {.compute = Stream::Mode::worker, .inference = true});
    engine.load_checkpoint(checkpoint);
    seen[size_t(world.rank())] = look(engine, world);
    EXPECT_EQ(engine.memory_planned(), engine.memory_peak()) << l.text() << " rank " << world.rank();
    EXPECT_EQ(engine.memory_planned(), engine.memory_live()) << l.text() << " rank " << world.rank();
    for (const Category none :
         {Category::gradients, Category::master, Category::optimizer_state, Category::buckets})
      EXPECT_EQ(engine.memory_peak().total(none), 0) << l.text() << " " << name_of(none);
  });
  for (const Seen& s : seen) {
    EXPECT_EQ(s.loss, seen[0].loss) << l.text();
    EXPECT_EQ(s.logits, seen[0].logits) << l.text();
  }
  return seen[0];
}

TEST(Inference, EqualsTheTrainingEngineInEveryLayout) {
  for (const bool llama : {false, true}) {
    const runtime::ModelFactory model = llama ? cut_llama(false) : cut_gpt(true);
    const Trained want = train_once(model, llama ? "llama" : "gpt");
    ASSERT_EQ(want.seen.row.size(), size_t(kVocab));
    EXPECT_EQ(
        std::vector<float>(want.seen.logits.begin() + 5 * kVocab, want.seen.logits.begin() + 6 * kVocab),
        want.seen.row);
    for (const Layout& l : inference_layouts()) {
      if (llama && l.tensor * l.sequence > 2) continue;
      const Seen got = look_as(l, config_of(l, 1), model, want.folder);
      EXPECT_NEAR(got.loss, want.seen.loss, 1e-6 * want.seen.loss) << l.text();
      EXPECT_LT(farthest(got.logits, want.seen.logits), 2e-6) << l.text();
      EXPECT_LT(farthest(got.row, want.seen.row), 2e-6) << l.text();
      // If no product is cut, a pipeline adds in the same order as one rank.
      if (l.data * l.tensor * l.sequence > 1) continue;
      EXPECT_EQ(got.loss, want.seen.loss) << l.text();
      EXPECT_EQ(got.logits, want.seen.logits) << l.text();
    }
  }
}

TEST(Inference, ReadsWeightsFromEveryHomeInEveryType) {
  for (const config::Precision type :
       {config::Precision::fp32, config::Precision::bf16, config::Precision::fp16}) {
    const runtime::ModelFactory model = cut_gpt(false, type_of(type));
    const Trained want = train_once(model, fmt::format("type{}", int(type)), type);
    for (const Homes& home : all_homes())
      for (const auto& [pipe, data] : {std::array{1, 1}, {2, 2}, {1, 4}})
        for (const int near : {0, 2, -2}) {
          if (near != 0 && data != 4) continue;
          const Layout l{pipe, data, 1, 3};
          config::DsConfig c = in_type(with(config_of(l, 4), home), type);
          c.zero.mics_shard_size = std::max(-1, near), c.zero.zero_hpz_partition_size = std::max(1, -near);
          if (near == 0 && data > 1) c.zero.stage3_param_persistence_threshold = 100;
          const Seen got = look_as(l, c, model, want.folder);
          EXPECT_NEAR(got.loss, want.seen.loss, 1e-6 * want.seen.loss) << text_of(home, c);
          EXPECT_EQ(got.logits, want.seen.logits) << text_of(home, c);
        }
  }
}

// GPT with 2 layers of width 16 in bf16: 2 bytes per parameter instead of 16, and activations of two
// boundaries and one layer.
TEST(Inference, TakesTheWeightsAndOneLayer) {
  const config::DsConfig c = in_type(config_of({}, 1, 4), config::Precision::bf16);
  comm::run_ranks(1, [&](comm::Communicator& world) {
    const runtime::Engine trains(c, cut_gpt(false, DType::bf16), world, {});
    const runtime::Engine reads(c, cut_gpt(false, DType::bf16), world, {.inference = true});
    const MemoryTable more = trains.memory_live(), less = reads.memory_live();
    EXPECT_EQ(less.total(Category::weights), more.total(Category::weights));
    EXPECT_EQ(less.total(Category::weights) * 8,
              more.total(Category::weights) + more.total(Category::gradients) + more.total(Category::master) +
                  more.total(Category::optimizer_state));
    EXPECT_LT(less.total(Category::activations), more.total(Category::activations));
    EXPECT_EQ(
        less.total(MemoryKind::device),
        less.total(Category::weights) + less.total(Category::activations) + less.total(Category::staging));
  });
}

// Layers read their input until they finish, so boundaries must not share memory.
TEST(Inference, OfAnMlpHasTheBitsOfTheTrainer) {
  std::vector<float> input(4 * 32);
  for (size_t i = 0; i < input.size(); ++i) input[i] = float(i % 7) - 3;
  std::vector<int32_t> targets(4, 1);
  const Batch batch{.input = Tensor(input.data(), DType::fp32, {4, 32}, MemoryKind::host),
                    .targets = Tensor(targets.data(), DType::int32, {4}, MemoryKind::host),
                    .valid_targets = 4};
  comm::run_ranks(1, [&](comm::Communicator& world) {
    const model::MlpConfig shape{{32, 24, 32, 20, 9}};
    const config::DsConfig c = config_for(1, 4);
    runtime::Engine trains(c, model::make_mlp(shape, DType::fp32), world, {});
    runtime::Engine reads(c, model::make_mlp(shape, DType::fp32), world, {.inference = true});
    reads.set_parameters([&](const ParamSpec& p) { return trains.parameter(p.name); });
    EXPECT_EQ(reads.predict(batch), trains.predict(batch));
  });
}

// The number of layers changes only the activations of a training engine.
TEST(Inference, TakesAsMuchForActivationsHoweverManyLayersThereAre) {
  const auto activations = [&](int layers, bool inference) {
    const model::MlpConfig shape{std::vector<int64_t>(size_t(layers), 32)};
    config::DsConfig c = config_for(1, 8);
    int64_t bytes = 0;
    comm::run_ranks(1, [&](comm::Communicator& world) {
      bytes = runtime::Engine(c, model::make_mlp(shape, DType::fp32), world, {.inference = inference})
                  .memory_live()
                  .total(Category::activations);
    });
    return bytes;
  };
  EXPECT_EQ(activations(9, true), activations(5, true));
  EXPECT_GT(activations(9, false), activations(5, false));
}

TEST(Inference, NeitherTrainsNorSaves) {
  comm::run_ranks(1, [&](comm::Communicator& world) {
    runtime::Engine engine(config_of({}, 1), cut_gpt(true), world, {.inference = true});
    Tokens tokens(1, kTokens);
    for (const std::function<void()>& wrong :
         {std::function<void()>([&] { engine.train_batch([&](int) { return tokens.at(0, 0); }); }),
          std::function<void()>([&] { engine.save_checkpoint(folder().path("no"), "t"); })})
      expect_error(Exit::internal, {"neither trains nor saves"}, wrong);
    expect_error(Exit::internal, {"rows 7 to 9 of a micro-batch of 8"}, [&] {
      engine.predict(tokens.at(0, 0), Range{7, 9});
    });
  });
}

TEST(Inference, TakesParametersFromTheCaller) {
  comm::run_ranks(3, [&](comm::Communicator& world) {
    for (const int stage : {1, 3}) {
      config::DsConfig c = config_for(3);
      c.zero.stage = stage;
      runtime::Engine engine(c, small_gpt(), world, {.inference = true});
      for (const float value : {0.25f, 0.5f}) {  // also a second time
        engine.set_parameters(
            [&](const ParamSpec& p) { return std::vector<float>(size_t(p.whole_numel()), value); });
        EXPECT_EQ(engine.parameter("idle.unused"), std::vector<float>(3, value));
      }
    }
  });
}

TEST(Inference, ReadsItsWeightsBackFromTheDisk) {
  const runtime::ModelFactory model = cut_gpt(true);
  const std::string checkpoint = train_once(model, "read back").folder;
  Weights want;
  comm::run_ranks(1, [&](comm::Communicator& world) {
    runtime::Engine engine(config_of({}, 2), model, world, {});
    engine.load_checkpoint(checkpoint);
    want = weights_of(engine);
  });
  const Layout l{.data = 2, .zero = 3};
  const config::DsConfig c = with(config_of(l, 2), {.parameters = true, .disk = true});
  comm::run_ranks(2, [&](comm::Communicator& world) {
    runtime::Engine engine(c, model, world, {.inference = true});
    engine.load_checkpoint(checkpoint);
    const Seen seen = look(engine, world);
    EXPECT_EQ(weights_of(engine), want);
    EXPECT_EQ(look(engine, world).loss, seen.loss);
  });
}

}  // namespace
}  // namespace cleave::testing
