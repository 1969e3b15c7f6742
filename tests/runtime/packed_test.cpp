// Documents packed into samples, with attention and positions inside each, give the losses, gradients and
// weights of separate documents, in every layout.
#include "tests/runtime/cut_models.h"
#include "tests/sampled.h"
#include "tests/scratch.h"

namespace cleave::testing {
namespace {

constexpr int kSteps = 4, kSamples = 2;  // samples per packed micro-batch

// Lengths of the documents in a sample of kTokens positions; the rest is padding.
const std::vector<std::vector<int64_t>> kPackings{{3, 5}, {8}, {1, 2, 4}, {5, 3}, {2, 2, 2, 2}, {6}, {1, 7}};
constexpr int64_t kMostDocuments = 4;

// Documents of a micro-batch of kSamples samples, packed or each in a separate row.
class Documents {
 public:
  Batch packed(int64_t step, int64_t first) { return make(step, first, kSamples, true); }
  Batch alone(int64_t step, int64_t first) { return make(step, first, kSamples * kMostDocuments, false); }

 private:
  Batch make(int64_t step, int64_t first, int64_t rows, bool together) {
    const auto size = size_t(rows * kTokens);
    input_.assign(size, 0), targets_.assign(size, kIgnoredTarget), documents_.assign(size, 0);
    const Philox random{5, 1};
    int64_t row = 0, valid = 0;
    for (int64_t s = 0; s < kSamples; ++s) {
      const auto& lengths = kPackings[size_t(step * 5 + first + s) % kPackings.size()];
      int64_t place = 0;
      for (size_t d = 0; d < lengths.size(); ++d) {
        const int64_t begin = together ? place : 0;
        for (int64_t t = 0; t < lengths[d]; ++t) {
          const auto word = [&](int64_t at) {
            return int32_t(random.word(uint64_t(((step * 64 + first + s) * 8 + int64_t(d)) * 16 + at)) %
                           kVocab);
          };
          const size_t at = size_t((together ? s : row) * kTokens + begin + t);
          input_[at] = word(t);
          // One target in the middle is masked.
          if (t != 3) targets_[at] = word(t + 1), ++valid;
        }
        std::fill_n(documents_.begin() + (together ? s : row) * kTokens + begin, lengths[d], int32_t(begin));
        place += lengths[d], ++row;
      }
      if (together) std::fill_n(documents_.begin() + s * kTokens + place, kTokens - place, int32_t(place));
    }
    const auto view = [&](std::vector<int32_t>& v) {
      return Tensor(v.data(), DType::int32, {int64_t(v.size())}, MemoryKind::host);
    };
    return {.input = view(input_),
            .targets = view(targets_),
            .valid_targets = valid,
            .documents = view(documents_)};
  }

  std::vector<int32_t> input_, targets_, documents_;
};

// With normalized heads four elements are too few: a small one amplifies its rounding.
runtime::ModelFactory model_of(const model::Family& family, bool masked) {
  return [=, &family](const model::Axes& axes) {
    return model::make_model(family,
                             {.vocab = kVocab,
                              .positions = 11,
                              .width = 16,
                              .layers = 3,
                              .heads = 4,
                              .kv_heads = &family == &model::kGpt2 ? 4 : 2,
                              .head_dim = &family == &model::kQwen3 ? 8 : 4,
                              .mlp_width = 20,
                              .document_mask = masked,
                              .tied = &family == &model::kGpt2,
                              .init_scale = 0.3f},
                             DType::fp32, kTokens, "packed", axes);
  };
}

struct PackedRun {
  Training training;
  double evaluated = 0;
};

PackedRun run_on(const Layout& l, const config::DsConfig& c, const runtime::ModelFactory& model, bool packed,
                 const runtime::EngineOptions& options = {}) {
  std::vector<PackedRun> runs(static_cast<size_t>(l.ranks()));
  comm::run_ranks(l.ranks(), [&](comm::Communicator& world) {
    runtime::Engine engine(c, model, world, options);
    Documents documents;
    const int place = engine.mesh().place(world.rank()).data;
    const auto batches = [&](int64_t step) {
      return [&, step](int micro) {
        const int64_t first = (int64_t(micro) * l.data + place) * kSamples;
        return packed ? documents.packed(step, first) : documents.alone(step, first);
      };
    };
    PackedRun& mine = runs[size_t(world.rank())];
    for (int step = 0; step < kSteps; ++step)
      mine.training.steps.push_back(engine.train_batch(batches(step)));
    mine.training.weights = weights_of(engine);
    mine.evaluated = engine.evaluate(batches(kSteps), 4 / l.data).loss;
    EXPECT_EQ(engine.memory_planned(), engine.memory_peak()) << l.text();
  });
  for (const PackedRun& r : runs) expect_same_bits(r.training, runs[0].training, l.text());
  return std::move(runs[0]);
}

config::DsConfig smooth(const Layout& l, int accumulation, int64_t samples) {
  config::DsConfig c = config_of(l, accumulation, int(samples));
  c.optimizer.eps = 1e-2;
  return c;
}

const model::Family& family_of(const std::string& name) {
  return name == "gpt" ? model::kGpt2 : name == "llama" ? model::kLlama : model::kQwen3;
}

// Every document in a separate row, by a model without document masks.
const PackedRun& alone(const std::string& name) {
  static std::map<std::string, PackedRun> known;
  PackedRun& run = known[name];
  if (run.training.steps.empty())
    run = run_on({}, smooth({}, 4, kSamples * kMostDocuments), model_of(family_of(name), false), false);
  return run;
}

class Packed : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Families, Packed, ::testing::Values("gpt", "llama", "qwen3"),
                         [](const auto& p) { return std::string(p.param); });

TEST_P(Packed, DocumentsTrainInEveryLayoutLikeSeparateOnes) {
  const runtime::ModelFactory model = model_of(family_of(GetParam()), true);
  Sampled sampled;
  for (int pipe : {1, 2})
    for (int sequence : {1, 2, 4})
      for (int tensor : {1, 2})
        for (int data : {1, 2})
          for (int zero : {0, 1, 2, 3}) {
            Layout l{pipe, data, tensor, zero, zero % 2 ? "zb-h1" : "1f1b", zero == 2, zero < 2};
            l.sequence = sequence;
            if (l.ranks() > 8 || sequence * tensor > 4 || !sampled.next()) continue;
            const PackedRun got = run_on(l, smooth(l, 4 / data, kSamples), model, true),
                            &want = alone(GetParam());
            expect_close(got.training, want.training, 1e-6, l.text());
            EXPECT_NEAR(got.evaluated, want.evaluated, 1e-6 * want.evaluated) << l.text();
          }
}

TEST_P(Packed, RecomputationOverlapAndSchedulesChangeNoBit) {
  const runtime::ModelFactory model = model_of(family_of(GetParam()), true);
  for (int pipe : {1, 2}) {
    const Layout l{pipe, 1, 1, 1};
    const PackedRun want = run_on(l, smooth(l, 4, kSamples), model, true);
    for (int way : {0, 1, 2, 3, 4, 5}) {
      Layout other = l;
      if (way >= 4) other.schedule = way == 4 ? "zb-h1" : "gpipe";
      config::DsConfig c = smooth(other, 4, kSamples);
      c.zero.stage = way == 1 ? 3 : 1, c.zero.overlap_comm = way == 1;
      c.checkpointing = {.interval = way == 2 || way == 4 ? 1 : 0, .lean = way == 3, .to_host = way == 2};
      const runtime::EngineOptions options{.compute =
                                               way == 1 ? Stream::Mode::worker : Stream::Mode::inline_};
      expect_same_bits(run_on(other, c, model, true, options).training, want.training,
                       fmt::format("{} way {}", other.text(), way));
    }
  }
}

// Without the mask a document sees earlier ones: the comparisons above would fail.
TEST_P(Packed, WithoutTheMaskDocumentsSeeOthers) {
  const PackedRun got = run_on({}, smooth({}, 4, kSamples), model_of(family_of(GetParam()), false), true);
  const PackedRun& want = alone(GetParam());
  EXPECT_GT(std::abs(got.training.steps[0].loss / want.training.steps[0].loss - 1), 1e-3);
  EXPECT_GT(std::abs(got.training.steps[0].grad_norm / want.training.steps[0].grad_norm - 1), 1e-3);
}

TEST(PackedBatches, BeginningsOfDocumentsAreChecked) {
  comm::run_ranks(1, [&](comm::Communicator& world) {
    Documents documents;
    const auto train = [&](const std::function<void(Batch&)>& change) {
      runtime::Engine engine(smooth({}, 1, kSamples), model_of(model::kLlama, true), world, {});
      engine.train_batch([&](int) {
        Batch batch = documents.packed(0, 0);
        change(batch);
        return batch;
      });
    };
    train([](Batch&) {});
    const auto refused = [&](size_t at, int32_t value, std::string_view what) {
      expect_error(Exit::data, {what},
                   [&] { train([&](Batch& b) { b.documents.as<int32_t>()[at] = value; }); });
    };
    refused(0, 1, "documents: wrong start at position 0 of sample 0");
    refused(9, 2, "documents: wrong start at position 1 of sample 1");
    refused(6, 0, "documents: wrong start at position 6 of sample 0 (got 0, expected 3 to 6");
    EXPECT_THROW(train([](Batch& b) { b.documents = {}; }), Error);
  });
}

}  // namespace
}  // namespace cleave::testing
