// Initial values, evaluation, overflow, checkpoints and failures of models cut over a tensor axis.
#include <fstream>

#include "tests/runtime/cut_models.h"
#include "tests/runtime/dying_rank.h"

namespace cleave::testing {
namespace {

TEST(TensorValues, InitialWeightsAreTheSameBitsInEveryLayout) {
  for (const auto& model : {cut_gpt(true), cut_gpt(false), cut_llama(false)}) {
    const Training want = train_on_all({}, config_of({}, 1), model, 0);
    for (const Layout& l : {Layout{1, 1, 4, 0}, Layout{2, 2, 2, 3}, Layout{1, 2, 2, 1, "1f1b", true}})
      EXPECT_EQ(train_on_all(l, config_of(l, 1), model, 0).weights, want.weights) << l.text();
  }
}

TEST(TensorValues, WholeTensorsAreSetAndReadBackWhateverTheLayout) {
  for (const Layout& l : {Layout{1, 1, 4, 0}, Layout{2, 2, 2, 3}, Layout{1, 1, 2, 1}})
    comm::run_ranks(l.ranks(), [&](comm::Communicator& world) {
      runtime::Engine engine(config_of(l, 1), cut_gpt(true), world, {});
      const auto value = [](const std::string& name, size_t i) {
        return float(Philox{3, hash_name(name)}.normal(i));
      };
      engine.set_parameters([&](const ParamSpec& p) {
        std::vector<float> v(size_t(p.whole_numel()));
        for (size_t i = 0; i < v.size(); ++i) v[i] = value(p.name, i);
        return v;
      });
      for (const auto& [name, values] : weights_of(engine))
        for (size_t i = 0; i < values.size(); ++i) ASSERT_EQ(values[i], value(name, i)) << name << " " << i;
      EXPECT_EQ(engine.parameter("wte.weight").size(), size_t(kVocab * 16));
    });
}

// Batches of 5 samples in evaluation, more than one instruction list covers; logits have the vocabulary's
// width without padding.
TEST(TensorEvaluation, LossAndLogitsAreThoseOfOneRankOnEveryRank) {
  for (const auto& model : {cut_gpt(true), cut_llama(false)}) {
    const auto view = [&](const Layout& l, comm::Communicator& world, double& loss,
                          std::vector<float>& logits) {
      runtime::Engine engine(config_of(l, 1), model, world, {});
      Tokens tokens(1, kTokens);
      loss = engine
                 .evaluate(source(tokens, engine.config(), 7, engine.mesh().place(world.rank()).data, l.data),
                           12 / l.data)
                 .loss;
      logits = engine.predict(tokens.at(3, 0));
    };
    double want_loss = 0;
    std::vector<float> want_logits;
    comm::run_ranks(1, [&](comm::Communicator& world) { view({}, world, want_loss, want_logits); });
    ASSERT_EQ(want_logits.size(), size_t(kTokens * kVocab));
    for (const Layout& l : {Layout{1, 1, 2, 0}, Layout{1, 1, 4, 3}, Layout{2, 2, 2, 3, "interleaved"},
                            Layout{2, 1, 4, 0, "1f1b", false, false}})
      comm::run_ranks(l.ranks(), [&](comm::Communicator& world) {
        double loss = 0;
        std::vector<float> logits;
        view(l, world, loss, logits);
        EXPECT_NEAR(loss, want_loss, 1e-6 * want_loss) << l.text();
        ASSERT_EQ(logits.size(), want_logits.size()) << l.text();
        for (size_t i = 0; i < logits.size(); ++i)
          ASSERT_NEAR(logits[i], want_logits[i], 2e-6) << l.text() << " logit " << i;
      });
  }
}

// Overflows caused by targets in one rank's part of the vocabulary, and by weights in one rank's part of the
// MLP.
TEST(TensorOverflow, OnOneRankSkipsTheStepOnAllAndChangesNothing) {
  for (bool cut_rows : {false, true})
    for (const Layout& l :
         {Layout{1, 1, 4, 2, "1f1b", false, cut_rows}, Layout{2, 2, 2, 3, "1f1b", false, cut_rows}})
      comm::run_ranks(l.ranks(), [&](comm::Communicator& world) {
        config::DsConfig c = config_of(l, 2);
        c.precision = config::Precision::fp16, c.fp16.enabled = true;
        runtime::Engine engine(c, cut_gpt(true, DType::fp16), world, {});
        const Weights before = weights_of(engine);
        engine.set_parameters([&](const ParamSpec& p) {
          std::vector<float> v = before.at(p.name);
          // The last columns belong to the last rank.
          if (p.name == "h.1.mlp.c_fc.weight") std::fill(v.end() - v.size() / 8, v.end(), 60000.0f);
          return v;
        });
        Tokens tokens(1, kTokens);
        const int place = engine.mesh().place(world.rank()).data;
        const runtime::StepResult r = engine.train_batch(source(tokens, c, 0, place, l.data));
        EXPECT_TRUE(r.skipped) << l.text();
        EXPECT_EQ(weights_of(engine).at("h.0.ln_1.weight"), before.at("h.0.ln_1.weight"));
        EXPECT_EQ(weights_of(engine).at("h.0.attn.c_attn.weight"), before.at("h.0.attn.c_attn.weight"));
        engine.set_parameters([&](const ParamSpec& p) { return before.at(p.name); });
        bool trained = false;
        for (int64_t step = 1; step < 20 && !trained; ++step)
          trained = !engine.train_batch(source(tokens, c, step, place, l.data)).skipped;
        EXPECT_TRUE(trained) << l.text();
      });
}

// 24 heads, 12 key/value heads and an MLP of 36 columns, divisible by 1, 2, 3 and 4 ranks; 29 tokens,
// divisible by none.
runtime::ModelFactory heads_of_twelve(const model::Family& family) {
  return [&family](const model::Axes& axes) {
    return model::make_model(family,
                             {.vocab = kVocab,
                              .positions = 12,
                              .width = 10,
                              .layers = 2,
                              .heads = 24,
                              .kv_heads = 12,
                              .head_dim = 2,
                              .mlp_width = 36,
                              .tied = true,
                              .qkv_bias = true,
                              .output_bias = true,
                              .init_scale = 0.1f},
                             DType::fp32, 12, "twelve", axes);
  };
}

class FamilyCheckpoints : public ::testing::TestWithParam<const model::Family*> {};
INSTANTIATE_TEST_SUITE_P(Tensor, FamilyCheckpoints, ::testing::Values(&model::kLlama, &model::kPhi3),
                         [](const auto& at) { return at.param->type; });

// Three steps in one layout, a checkpoint; in the other layout, the same state and then three more steps.
TEST_P(FamilyCheckpoints, AreReadBitForBitByAnyOtherTensorLayout) {
  const Layout layouts[] = {
      {1, 1, 1, 0},          {1, 1, 2, 3}, {1, 1, 3, 1},        {1, 2, 3, 2, "1f1b", true},
      {2, 1, 2, 3, "zb-h1"}, {1, 1, 4, 2}, {2, 2, 1, 1, "1f1b"}};
  Weights want;
  Training continued;
  for (const Layout& from : layouts) {
    const Scratch scratch;
    const auto run = [&](const Layout& l, int64_t begin, int64_t end) {
      Training first;
      comm::run_ranks(l.ranks(), [&](comm::Communicator& world) {
        runtime::Engine engine(config_of(l, 2 / l.data), heads_of_twelve(*GetParam()), world, {});
        Tokens tokens(1, 12);
        Training mine;
        if (begin > 0) engine.load_checkpoint(scratch.folder().string());
        const Weights loaded = weights_of(engine);
        if (world.rank() == 0) want = loaded;
        for (int64_t s = begin; s < end; ++s)
          mine.steps.push_back(engine.train_batch(
              source(tokens, engine.config(), s, engine.mesh().place(world.rank()).data, l.data)));
        if (begin == 0) engine.save_checkpoint(scratch.folder().string(), "three");
        mine.weights = weights_of(engine);
        if (world.rank() == 0) first = std::move(mine);
      });
      return first;
    };
    const Training saved = run(from, 0, 3);
    for (const Layout& to : layouts) {
      const std::string what = from.text() + " to " + to.text();
      const Training got = run(to, 3, 6);
      EXPECT_EQ(want, saved.weights) << what;
      if (continued.steps.empty()) continued = got;
      for (size_t s = 0; s < 3; ++s)
        EXPECT_NEAR(got.steps[s].loss, continued.steps[s].loss, 2e-6 * continued.steps[s].loss) << what;
    }
  }
}

// A tensor cut along its columns is one record per rank and slice, not one per row.
TEST(TensorCheckpoints, HoldFewRecords) {
  const Scratch scratch;
  const Layout l{1, 1, 4, 0};
  comm::run_ranks(4, [&](comm::Communicator& world) {
    runtime::Engine engine(config_of(l, 1), cut_gpt(true), world, {});
    engine.save_checkpoint(scratch.folder().string(), "first");
  });
  std::ifstream in(scratch.path("first/manifest.json"));
  const std::string manifest((std::istreambuf_iterator<char>(in)), {});
  size_t records = 0;
  for (size_t at = manifest.find("\"xxh3\""); at != std::string::npos; at = manifest.find("\"xxh3\"", at + 1))
    ++records;
  // Three kinds; four pieces of the embedding and of 6 cut tensors per block; 10 whole ones and the unused
  // one.
  EXPECT_LE(records, 3u * (4 * (1 + 2 * 6) + 4 * (1 + 2 * 6 + 2 + 1)));
}

TEST(TensorFailures, ARankThatThrowsEndsTheOthersBeforeTheDeadline) {
  const Layout l{2, 2, 2, 2};
  for (int victim : {0, 1, 3, 6}) expect_all_end_with(victim, 8, config_of(l, 4), cut_gpt(true), kTokens);
}

TEST(TensorFailures, ARankThatStaysAwayIsNamedWithTheCollectiveItIsMissedIn) {
  std::string message;
  try {
    comm::run_ranks(2,
                    [&](comm::Communicator& world) {
                      runtime::Engine engine(config_of({.tensor = 2}, 1), cut_gpt(true), world, {});
                      Tokens tokens(1, kTokens);
                      if (world.rank() == 0) engine.train_batch([&](int) { return tokens.at(0, 0); });
                      // The other rank joins the count of targets, and then stays away.
                      int64_t targets = 0;
                      Stream stream;
                      world.all_reduce(Tensor(&targets, DType::int64, {1}, MemoryKind::host), stream);
                    },
                    {.timeout = std::chrono::milliseconds(300)});
  } catch (const Error& e) {
    message = e.what();
  }
  EXPECT_NE(message.find("reduce_scatter"), std::string::npos) << message;
  EXPECT_NE(message.find("wte"), std::string::npos) << message;
}

}  // namespace
}  // namespace cleave::testing
