// An MLP cut over a tensor axis trains like the whole one.
#include "tests/runtime/cut_models.h"

namespace cleave::testing {
namespace {

constexpr int64_t kFeatures = 12, kSamples = 6;

runtime::ModelFactory cut_mlp(std::vector<int64_t> sizes) {
  return [sizes](const model::Axes& axes) { return model::make_mlp({sizes}, DType::fp32, "mlp", axes); };
}

// Micro-batches of kSamples rows of features and a class that depends on them, different for each place on
// the data axis.
Training train_rows(const Layout& l, const config::DsConfig& c, const runtime::ModelFactory& model,
                    const runtime::EngineOptions& options = {}) {
  Training first;
  comm::run_ranks(l.ranks(), [&](comm::Communicator& world) {
    runtime::Engine engine(c, model, world, options);
    std::vector<float> x(size_t(kSamples * kFeatures));
    std::vector<int32_t> y(size_t(kSamples), 0);
    Training run;
    const int place = engine.mesh().place(world.rank()).data, ranks = engine.mesh().data;
    for (int step = 0; step < 5; ++step)
      run.steps.push_back(engine.train_batch([&](int micro) {
        const Philox random{uint64_t(7 + step), uint64_t(micro * ranks + place)};
        for (size_t i = 0; i < x.size(); ++i) x[i] = float(random.normal(i));
        for (size_t s = 0; s < y.size(); ++s)
          y[s] = int32_t(3 * (x[s * kFeatures] > 0) + (x[s * kFeatures + 1] > 0));
        return Batch{.input = Tensor(x.data(), DType::fp32, {kSamples, kFeatures}, MemoryKind::host),
                     .targets = Tensor(y.data(), DType::int32, {kSamples}, MemoryKind::host),
                     .valid_targets = kSamples};
      }));
    run.weights = weights_of(engine);
    EXPECT_EQ(engine.memory_planned(), engine.memory_peak()) << l.text();
    if (world.rank() == 0) first = std::move(run);
  });
  return first;
}

config::DsConfig smooth(const Layout& l, int accumulation) {
  config::DsConfig c = config_of(l, accumulation, int(kSamples));
  c.optimizer.eps = 1e-2;
  return c;
}

// One, two and three hidden layers: cut by inputs alone, in a pair, and both. 5 classes over 2 or 3 ranks end
// in padding.
TEST(TensorMlp, IsCloseToOneRankWithRowsCutAndWhole) {
  for (const std::vector<int64_t>& sizes :
       {std::vector<int64_t>{kFeatures, 6, 5}, {kFeatures, 18, 12, 5}, {kFeatures, 6, 24, 12, 5}}) {
    const Training want = train_rows({}, smooth({}, 2), cut_mlp(sizes));
    for (const int tensor : {2, 3})
      for (const bool cut_rows : {false, true})
        for (const bool overlap : {false, true}) {
          const Layout l{.tensor = tensor, .cut_rows = cut_rows};
          config::DsConfig c = smooth(l, 2);
          c.tensor_parallel.tp_overlap_comm = overlap, c.tensor_parallel.overlap_rows = 1;
          expect_close(train_rows(l, c, cut_mlp(sizes)), want, 1e-6,
                       fmt::format("{} layers, {}", sizes.size(), l.text()));
        }
  }
}

TEST(TensorMlp, IsCloseToOneRankInAPipelineOverDataUnderZero3) {
  const runtime::ModelFactory model = cut_mlp({kFeatures, 6, 24, 12, 5});
  const Training want = train_rows({}, smooth({}, 4), model);
  for (const bool cut_rows : {false, true}) {
    const Layout l{.pipe = 2, .data = 2, .tensor = 2, .zero = 3, .cut_rows = cut_rows};
    expect_close(train_rows(l, smooth(l, 2), model), want, 1e-6, l.text());
  }
}

TEST(TensorMlp, RejectsSizesThatDoNotDivideAndNamesValidOnes) {
  const auto refusal = [](const std::vector<int64_t>& sizes, int tensor,
                          bool partition = false) -> std::string {
    try {
      const Layout l{.tensor = tensor, .cut_rows = !partition};
      config::DsConfig c = smooth(l, 1);
      if (partition) c.checkpointing.interval = 1, c.checkpointing.partition = true;
      train_rows(l, c, cut_mlp(sizes));
    } catch (const Error& e) {
      return fmt::format("{}: {}", int(e.exit()), e.what());
    }
    return "accepted";
  };
  EXPECT_EQ(refusal({kFeatures, 10, 12, 5}, 3),
            "2: tensor_parallel.autotp_size: 10 outputs of dense.0 are not divisible by 3 ranks (expected 1, "
            "2, 5, 10)");
  EXPECT_EQ(refusal({kFeatures, 10, 5}, 5),
            "2: tensor_parallel.autotp_size: 12 inputs of dense.0 are not divisible by 5 ranks (expected 1, "
            "2, 3, 4, 6, 12)");
  EXPECT_NE(refusal({kFeatures, 5}, 2).find("without hidden layers"), std::string::npos);
  EXPECT_NE(refusal({kFeatures, 8, 8, 5}, 4).find("6 rows of a micro-batch are not divisible"),
            std::string::npos);
  EXPECT_NE(refusal({kFeatures, 8, 8, 5}, 2, true).find("partition_activations"), std::string::npos);
  EXPECT_EQ(refusal({kFeatures, 10, 5}, 2), "accepted");
}

}  // namespace
}  // namespace cleave::testing
