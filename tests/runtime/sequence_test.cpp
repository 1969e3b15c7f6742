// Ranks that share sequences (DeepSpeed-Ulysses) train like one rank in every combination with the other
// axes, with the memory and traffic of the formulas.
#include <map>

#include "tests/runtime/cut_models.h"
#include "tests/sampled.h"

namespace cleave::testing {
namespace {

constexpr int kSequenceSteps = 5;
constexpr int kMicro = 2;  // samples per micro-batch: a rank's rows are not adjacent in the batch

runtime::ModelFactory llama(int64_t kv_heads = 4, const model::Family& family = model::kLlama,
                            int64_t head_dim = 2) {
  return [=, &family](const model::Axes& axes) {
    return model::make_model(family,
                             {.vocab = kVocab,
                              .positions = 11,
                              .width = 13,
                              .layers = 2,
                              .heads = 8,
                              .kv_heads = kv_heads,
                              .head_dim = head_dim,
                              .mlp_width = 20,
                              .qkv_bias = true,
                              .init_scale = 0.1f},
                             DType::fp32, kTokens, "llama", axes);
  };
}

config::DsConfig smooth_sequences(const Layout& l, int accumulation) {
  config::DsConfig c = config_of(l, accumulation, kMicro);
  c.optimizer.eps = 1e-2;
  return c;
}

// Training followed by evaluation. Every third sample ends in targets that do not count, so their part of a
// sequence has fewer targets than the others, or none.
struct Outcome {
  Training training;
  double evaluated = 0;
};
Outcome run_on(const Layout& l, config::DsConfig c, const runtime::ModelFactory& model,
               const runtime::EngineOptions& options = {}) {
  std::vector<Outcome> runs(static_cast<size_t>(l.ranks()));
  comm::run_ranks(l.ranks(), [&](comm::Communicator& world) {
    runtime::Engine engine(c, model, world, options);
    Tokens tokens(kMicro, kTokens);
    std::vector<int32_t> targets(kMicro * kTokens);
    const int place = engine.mesh().place(world.rank()).data;
    const auto batches = [&](int64_t step) {
      return [&, step](int micro) {
        const int64_t first = (int64_t(micro) * l.data + place) * kMicro;
        Batch batch = tokens.at(step, first);
        batch.valid_targets = 0;
        for (int64_t i = 0; i < kMicro * kTokens; ++i) {
          const bool ignored = (first + i / kTokens) % 3 == 0 && i % kTokens > 2;
          targets[size_t(i)] = ignored ? -100 : batch.targets.as<int32_t>()[i];
          batch.valid_targets += !ignored;
        }
        batch.targets = Tensor(targets.data(), DType::int32, {kMicro * kTokens}, MemoryKind::host);
        return batch;
      };
    };
    Outcome& mine = runs[size_t(world.rank())];
    for (int step = 0; step < kSequenceSteps; ++step)
      mine.training.steps.push_back(engine.train_batch(batches(step)));
    mine.training.weights = weights_of(engine);
    mine.evaluated = engine.evaluate(batches(kSequenceSteps), 12 / l.data).loss;
    EXPECT_EQ(engine.memory_planned(), engine.memory_peak()) << l.text();
  });
  for (const Outcome& r : runs) {
    expect_same_bits(r.training, runs[0].training, l.text());
    EXPECT_EQ(r.evaluated, runs[0].evaluated) << l.text();
  }
  return std::move(runs[0]);
}

const Outcome& one_rank_of_sequences(int samples, const runtime::ModelFactory& model,
                                     const std::string& name) {
  static std::map<std::pair<std::string, int>, Outcome> known;
  Outcome& run = known[{name, samples}];
  if (run.training.steps.empty()) run = run_on({}, smooth_sequences({}, samples), model);
  return run;
}

class Sequence : public ::testing::TestWithParam<std::tuple<const char*, int>> {};
INSTANTIATE_TEST_SUITE_P(ModelAndSize, Sequence,
                         ::testing::Combine(::testing::Values("gpt", "dropout", "llama", "shared", "qwen3"),
                                            ::testing::Values(1, 2, 4)),
                         [](const auto& p) {
                           return fmt::format("{}{}", std::get<0>(p.param), std::get<1>(p.param));
                         });

// Dropout can agree only as a function of a row's place in the global batch.
TEST_P(Sequence, TrainsAndEvaluatesLikeOneRankAtEveryStageAndWithOtherAxes) {
  const auto& [name, size] = GetParam();
  const std::string model_name = name;
  const float dropout = model_name == "dropout" ? 0.3f : 0;
  const runtime::ModelFactory model = model_name == "llama"   ? llama()
                                      : model_name == "qwen3" ? llama(4, model::kQwen3, 8)

                                      : model_name == "shared" ? llama(2)  // key/value heads shared by
                                                                           // several ranks
                                                               : cut_gpt(true, DType::fp32, dropout);
  Sampled sampled(size + int(model_name.size()));
  for (int pipe : {1, 2})
    for (int tensor : {1, 2})
      for (int data : {1, 2})
        for (int zero : {0, 1, 2, 3}) {
          Layout l{pipe, data, tensor, zero, zero % 2 ? "zb-h1" : "1f1b", zero == 2, tensor == 1 || zero < 2};
          l.sequence = size;
          if (l.ranks() > 8 || size * tensor > 4 || !sampled.next()) continue;
          const Outcome got = run_on(l, smooth_sequences(l, 2), model),
                        &want = one_rank_of_sequences(2 * data, model, model_name);
          expect_close(got.training, want.training, 1e-6, l.text());
          EXPECT_NEAR(got.evaluated, want.evaluated, 1e-6 * want.evaluated) << l.text();
        }
}

Layout cut(int size, int zero = 1, int data = 1, int tensor = 1, int pipe = 1) {
  Layout l{pipe, data, tensor, zero};
  l.sequence = size;
  return l;
}

TEST(SequenceRuns, StagesOverlapStreamsAndRecomputationChangeNoBit) {
  const runtime::ModelFactory model = cut_gpt(true, DType::fp32, 0.3f);
  const Outcome want = run_on(cut(2, 0, 2), smooth_sequences(cut(2, 0, 2), 1), model);
  for (int zero : {0, 1, 2, 3})
    for (int way : {0, 1, 2, 3}) {
      const Layout l = cut(2, zero, 2);
      config::DsConfig c = smooth_sequences(l, 1);
      c.zero.overlap_comm = way == 1;
      c.checkpointing = {.interval = way == 2 ? 1 : 0, .lean = way == 3, .to_host = way == 2};
      const runtime::EngineOptions options{.compute =
                                               way == 1 ? Stream::Mode::worker : Stream::Mode::inline_};
      const Outcome got = run_on(l, c, model, options);
      expect_same_bits(got.training, want.training, fmt::format("{} way {}", l.text(), way));
    }
}

TEST(SequenceRuns, ExactSumsAreTheSameBitsOverStagesPipesAndAccumulation) {
  const runtime::ModelFactory model = cut_gpt(true);
  Training want;
  for (const Layout& l : {cut(2, 0, 2), cut(2, 2, 2), cut(2, 3, 2, 1, 2), cut(2, 1, 1, 1, 2)}) {
    config::DsConfig c = smooth_sequences(l, 4 / l.data);
    c.exact_sums = true;
    const Outcome got = run_on(l, c, model);
    if (want.steps.empty()) want = got.training;
    ASSERT_EQ(got.training.weights, want.weights) << l.text();
  }
}

TEST(SequenceRuns, NearRanksMayBeThoseOfASequence) {
  const Layout l = cut(2, 3, 2);
  for (bool hybrid : {false, true}) {
    config::DsConfig c = smooth_sequences(l, 2);
    (hybrid ? c.zero.mics_shard_size : c.zero.zero_hpz_partition_size) = 2;
    expect_close(run_on(l, c, llama()).training, one_rank_of_sequences(4, llama(), "llama").training, 1e-6,
                 l.text());
  }
}

// Losses near 3.4 are means of 32 rows; half a unit in the last place of a logit changes each.
TEST(SequenceRuns, SixteenBitTypesAreCloseToOneRank) {
  for (const config::Precision precision : {config::Precision::bf16, config::Precision::fp16}) {
    const bool bf16 = precision == config::Precision::bf16;
    const auto typed = [&](const Layout& l, int accumulation) {
      config::DsConfig c = smooth_sequences(l, accumulation);
      c.precision = precision, c.fp16.enabled = !bf16, c.fp16.initial_scale_power = 10;
      return c;
    };
    const runtime::ModelFactory model = cut_gpt(true, bf16 ? DType::bf16 : DType::fp16);
    const Outcome want = run_on({}, typed({}, 4), model);
    for (const Layout& l : {cut(4, 2), cut(2, 3, 2), cut(2, 1, 2, 2)}) {
      const Outcome got = run_on(l, typed(l, 4 / l.data), model);
      for (size_t s = 0; s < size_t(kSequenceSteps); ++s)
        EXPECT_NEAR(got.training.steps[s].loss, want.training.steps[s].loss, bf16 ? 4e-3 : 5e-4) << l.text();
    }
  }
}

TEST(SequenceRuns, LogitsAreThoseOfOneRankOnEveryRank) {
  std::vector<float> want;
  for (const Layout& l : {Layout{}, cut(2), cut(4, 3), cut(2, 1, 1, 2, 2)})
    comm::run_ranks(l.ranks(), [&](comm::Communicator& world) {
      runtime::Engine engine(smooth_sequences(l, 1), llama(), world, {});
      Tokens tokens(kMicro, kTokens);
      const std::vector<float> got = engine.predict(tokens.at(3, 0));
      if (l.ranks() == 1) want = got;
      ASSERT_EQ(got.size(), size_t(kMicro * kTokens * kVocab));
      for (size_t i = 0; i < got.size(); ++i)
        ASSERT_NEAR(got[i], want[i], 2e-6) << l.text() << " logit " << i;
    });
}

// A block exchanges its queries, keys, values and its attention's output, forward and backward; for each, the
// part outside the rank.
TEST(SequenceRuns, SendTheBytesOfTheFormula) {
  for (int size : {2, 4})
    for (int tensor : {1, 2}) {
      const Layout l = cut(size, 1, 1, tensor);
      if (size * tensor > 4) continue;
      comm::run_ranks(l.ranks(), [&](comm::Communicator& world) {
        runtime::Engine engine(smooth_sequences(l, 3), cut_gpt(true), world, {});
        Tokens tokens(kMicro, kTokens);
        const comm::CommBytes before = engine.comm_bytes();
        engine.train_batch(source(tokens, engine.config(), 0, 0, 1));
        const int64_t width = 16 / tensor, rows = kMicro * kTokens / size, layers = 2, micros = 3;
        EXPECT_EQ(engine.comm_bytes()[comm::Collective::all_to_all] - before[comm::Collective::all_to_all],
                  micros * layers * 2 * rows * 4 * width * 4 * (size - 1) / size);
      });
    }
}

// Each of two neighbors gets the keys and values that both need.
TEST(SequenceRuns, SendSharedKeysAndValuesToEveryRankThatNeedsThem) {
  const Layout l = cut(4);
  comm::run_ranks(4, [&](comm::Communicator& world) {
    runtime::Engine engine(smooth_sequences(l, 1), llama(2), world, {});
    Tokens tokens(kMicro, kTokens);
    const comm::CommBytes before = engine.comm_bytes();
    engine.train_batch(source(tokens, engine.config(), 0, 0, 1));
    const int64_t rows = kMicro * kTokens / 4, layers = 2, q = 8 * 2, kv = 2 * 2;
    EXPECT_EQ(engine.comm_bytes()[comm::Collective::all_to_all] - before[comm::Collective::all_to_all],
              layers * 2 * rows * (2 * q + 2 * 2 * kv) * 4 * 3 / 4);
  });
}

// The whole frame is cut, and the output of the attention heads is kept once more for the output projection.
TEST(SequenceRuns, KeepThatPartOfTheActivations) {
  const int64_t seq = 32;  // 16 rows or more per rank: one number for each fills whole blocks of 64 bytes
  const auto kept = [=](int size, int blocks) {
    const Layout l = cut(size);
    int64_t bytes = 0;
    comm::run_ranks(l.ranks(), [&](comm::Communicator& world) {
      const runtime::ModelFactory model = [=](const model::Axes& axes) {
        return model::make_model(
            model::kGpt2, {.vocab = kVocab, .positions = seq, .width = 32, .layers = blocks, .heads = 4},
            DType::fp32, seq, "deep", axes);
      };
      runtime::Engine engine(smooth_sequences(l, 1), model, world, {});
      Tokens tokens(kMicro, seq);
      engine.train_batch(source(tokens, engine.config(), 0, 0, 1));
      EXPECT_EQ(engine.memory_planned(), engine.memory_peak());
      if (world.rank() == 0) bytes = engine.memory_peak().at(MemoryKind::device, Category::activations);
    });
    return bytes;
  };
  const int64_t rows = kMicro * seq, width = 32;
  // 15 widths per row and the output, 4 statistics, and the softmax statistics of 4 heads.
  const int64_t block = rows * (16 * width + 4 + 4) * 4;
  EXPECT_EQ(kept(1, 5) - kept(1, 3), 2 * block + 2 * 8);  // plus the norm of each of its two units
  for (int size : {2, 4})
    EXPECT_EQ(kept(size, 5) - kept(size, 3), 2 * (block + rows * width * 4) / size + 2 * 8) << size;
}

TEST(SequenceRuns, RejectSizesThatDoNotDivideAndNameValidOnes) {
  const auto refusal = [](const Layout& l, int ranks, const runtime::ModelFactory& model) -> std::string {
    try {
      comm::run_ranks(ranks, [&](comm::Communicator& world) {
        runtime::Engine engine(smooth_sequences(l, 1), model, world, {});
      });
    } catch (const Error& e) {
      return fmt::format("{}: {}", int(e.exit()), e.what());
    }
    return "accepted";
  };
  EXPECT_EQ(refusal(cut(4), 6, llama()),
            "2: sequence_parallel_size is 4, which does not divide the 6 ranks of this job; use 1, 2, 3, 6");
  EXPECT_EQ(refusal(cut(3), 3, llama()),
            "2: sequence_parallel_size: 8 positions of a sequence are not divisible by 3 ranks (expected 1, "
            "2, 4, 8); change it, or choose another sequence length");
  EXPECT_EQ(refusal(cut(8), 8, cut_gpt(true)),
            "2: sequence_parallel_size: 4 heads with 4 key/value heads cannot be divided among 8 ranks "
            "(expected 1, 2, 4)");
  const runtime::ModelFactory mlp = [](const model::Axes&) {
    return model::make_mlp({{4, 4, 2}}, DType::fp32);
  };
  EXPECT_EQ(refusal(cut(2), 2, mlp),
            "2: sequence_parallel_size: not supported by this model (got 2, but the sequences of mlp are "
            "whole); set the size to 1");
}

}  // namespace
}  // namespace cleave::testing
