// Incremental generation: logits from the KV cache against those of whole windows, in every layout.
#include "runtime/generation/texts.h"

#include "tests/runtime/homes.h"
#include "tests/runtime/inference.h"

namespace cleave::testing {
namespace {

constexpr int64_t kTexts = 3;  // their starts have these lengths
constexpr int64_t kBegin[kTexts] = {3, 1, 5};

int32_t token_of(int64_t text, int64_t position) { return int32_t((text * 5 + position * 3 + 1) % kVocab); }

std::vector<int32_t> tokens_of(int64_t text, Range positions) {
  std::vector<int32_t> out;
  for (int64_t p = positions.begin; p < positions.end; ++p) out.push_back(token_of(text, p));
  return out;
}

// Logits after every length from kBegin on, for every text.
using Logits = std::map<std::pair<int64_t, int64_t>, std::vector<float>>;

Logits windows(runtime::Engine& engine) {
  Logits out;
  const auto samples = size_t(engine.samples_per_micro());
  for (int64_t text = 0; text < kTexts; ++text)
    for (int64_t length = kBegin[text]; length <= kTokens; ++length) {
      std::vector<int32_t> window = tokens_of(text, {0, length});
      window.resize(samples * kTokens);
      out[{text, length}] = engine.predict(batch_of(window, window), Range{length - 1, length});
    }
  return out;
}

// Extends as many texts at a time as the engine keeps; the second begins later than the others. Overwrites
// earlier contents of a text.
Logits grown(runtime::Engine& engine) {
  Logits out;
  const int64_t most = std::min(kTexts, engine.texts());
  for (int64_t first = 0; first < kTexts; first += most) {
    std::map<int64_t, int64_t> lengths;
    for (int round = 0;; ++round) {
      std::vector<runtime::TextPart> parts;
      for (int64_t t = first; t < std::min(kTexts, first + most); ++t) {
        if (t == 1 && most > 1 && round < 2) continue;
        int64_t& has = lengths[t];
        const int64_t end = has == 0 ? kBegin[t] : has + 1;
        if (end > kTokens) continue;
        parts.push_back({t - first, has, tokens_of(t, {has, end})});
        has = end;
      }
      if (parts.empty()) break;
      const std::vector<float> logits = engine.extend(parts);
      EXPECT_EQ(logits.size(), parts.size() * kVocab);
      for (size_t i = 0; i < parts.size(); ++i)
        out[{parts[i].text + first, parts[i].begin + int64_t(parts[i].tokens.size())}] = {
            logits.begin() + int64_t(i) * kVocab, logits.begin() + int64_t(i + 1) * kVocab};
    }
  }
  return out;
}

double farthest_text(const Logits& got, const Logits& want) {
  double worst = got.size() == want.size() ? 0 : 1e9;
  for (const auto& [key, values] : want) {
    const auto at = got.find(key);
    worst = std::max(worst, at == got.end() ? 1e9 : farthest(at->second, values));
  }
  return worst;
}

void initialize(runtime::Engine& engine) {
  engine.set_parameters([&](const ParamSpec& p) {
    std::vector<float> values(size_t(p.whole_numel()));
    uint32_t state = 7;
    for (const char c : p.name) state = state * 31 + uint8_t(c);
    for (float& v : values) state = state * 1664525u + 1013904223u, v = float(state >> 8) * 0x1p-24f - 0.5f;
    if (p.init.kind == Init::Kind::ones)
      for (float& v : values) v += 1;
    return values;
  });
}

// Expects equal results on every rank.
Logits seen_by(const Layout& l, const runtime::ModelFactory& model, config::Precision type, int64_t texts,
               const std::function<Logits(runtime::Engine&)>& look) {
  std::vector<Logits> seen{size_t(l.ranks())};
  comm::run_ranks(l.ranks(), [&](comm::Communicator& world) {
    runtime::Engine engine(in_type(config_of(l, 1), type), model, world,
                           {.compute = Stream::Mode::worker, .inference = true, .texts = texts});
    initialize(engine);
    seen[size_t(world.rank())] = look(engine);
    EXPECT_EQ(engine.memory_planned(), engine.memory_peak()) << l.text();
    EXPECT_EQ(engine.memory_planned(), engine.memory_live()) << l.text();
  });
  for (const Logits& other : seen) EXPECT_EQ(other, seen[0]) << l.text();
  return seen[0];
}

TEST(Texts, HaveTheLogitsOfWholeWindowsInEveryLayout) {
  for (const bool llama : {false, true}) {
    const runtime::ModelFactory model = llama ? cut_llama(false) : cut_gpt(true);
    const Logits want = seen_by({}, model, config::Precision::fp32, 0, windows);
    for (const Layout& l : inference_layouts())
      for (const int64_t texts : {int64_t{1}, kTexts})
        EXPECT_LT(farthest_text(seen_by(l, model, config::Precision::fp32, texts, grown), want), 1e-5)
            << l.text() << " texts " << texts << (llama ? " llama" : " gpt");
  }
}

runtime::ModelFactory decoder(const model::Family& family, DType type, int64_t kv_heads, int64_t window) {
  return [=, &family](const model::Axes& axes) {
    model::ModelConfig c{.vocab = kVocab,
                         .positions = 11,
                         .width = 32,
                         .layers = 2,
                         .heads = 4,
                         .kv_heads = kv_heads,
                         .head_dim = 8,
                         .mlp_width = 20,
                         .window = window};
    if (family.norm_offset != 0) {  // Gemma: the window only in the first layer
      c.layer_kinds = {model::LayerKind::sliding, model::LayerKind::full};
      c.query_scalar = 5, c.attention_cap = &family == &model::kGemma2 ? 1 : 0, c.logit_cap = 30;
      c.local_rope_theta = &family == &model::kGemma3 ? 100 : 0;
    }
    return model::make_model(family, c, type, kTokens, "grown", axes);
  };
}

// Joint and separate projections, norms of heads, windows, grouped, cut and whole key/value heads, in every
// type. 16-bit types round between the kernels, at different points in the two ways.
TEST(Texts, HaveTheLogitsOfWholeWindowsInEveryFamily) {
  struct Case {
    const model::Family& family;
    int64_t kv_heads, window;
  };
  const Case cases[] = {{model::kGpt2, 4, 0},   {model::kLlama, 2, 0},   {model::kQwen2, 1, 0},
                        {model::kQwen3, 2, 0},  {model::kMistral, 2, 3}, {model::kPhi3, 4, 5},
                        {model::kGemma2, 2, 3}, {model::kGemma3, 1, 4}};
  for (const Case& c : cases)
    for (const config::Precision type :
         {config::Precision::fp32, config::Precision::bf16, config::Precision::fp16}) {
      const runtime::ModelFactory model = decoder(c.family, type_of(type), c.kv_heads, c.window);
      const Logits want = seen_by({}, model, type, 0, windows);
      double largest = 0;
      for (const auto& [key, logits] : want)
        for (const float x : logits) largest = std::max(largest, double(std::abs(x)));
      const double bound = type == config::Precision::fp32   ? 1e-5
                           : type == config::Precision::bf16 ? 0.02
                                                             : 0.0025;
      for (const int tensor : {1, 2}) {
        if (c.kv_heads % tensor != 0 && &c.family == &model::kPhi3) continue;
        const Layout l{.tensor = tensor};
        EXPECT_LT(farthest_text(seen_by(l, model, type, kTexts, grown), want), bound * std::max(1.0, largest))
            << c.family.names.block << " kv " << c.kv_heads << " type " << int(type) << " tensor " << tensor
            << ", largest " << largest;
      }
    }
}

// The bits of a text do not depend on the number of other texts.
TEST(Texts, HaveTheBitsThatTheyHaveAlone) {
  for (const config::Precision type :
       {config::Precision::fp32, config::Precision::bf16, config::Precision::fp16})
    for (const auto& [data, tensor] : {std::array{1, 1}, {2, 1}, {1, 2}}) {
      const runtime::ModelFactory model = cut_gpt(true, type_of(type));
      const Layout l{.data = data, .tensor = tensor, .zero = 3};
      const Logits alone = seen_by(l, model, type, 1, [](runtime::Engine& engine) {
        Logits out;
        for (int64_t t = 0; t < kTexts; ++t)
          for (int64_t has = 0, end = kBegin[t]; end <= kTokens; has = end++)
            out[{t, end}] = engine.extend({{0, has, tokens_of(t, {has, end})}});
        return out;
      });
      EXPECT_EQ(seen_by(l, model, type, kTexts, grown), alone) << l.text();
    }
}

TEST(Texts, KeepTwoTensorsALayerOfTheModelsType) {
  comm::run_ranks(1, [&](comm::Communicator& world) {
    const config::DsConfig c = in_type(config_of({}, 1), config::Precision::bf16);
    const auto held = [&](int64_t texts) {
      return runtime::Engine(c, cut_llama(true, DType::bf16), world, {.inference = true, .texts = texts})
          .memory_live();
    };
    const MemoryTable none = held(0), some = held(5);
    EXPECT_EQ(none.total(Category::kv_cache), 0);
    EXPECT_EQ(some.total(Category::kv_cache), 5 * 3 * 2 * (2 * kTokens * 2) * 2);
    EXPECT_EQ(some.total(Category::activations), none.total(Category::activations));
  });
}

// A text may go back to an earlier position, and a pass with more rows than the engine's micro-batch is
// split.
TEST(Texts, GoBackAndComeInPieces) {
  comm::run_ranks(1, [&](comm::Communicator& world) {
    runtime::Engine engine(config_of({}, 1), cut_gpt(true), world, {.inference = true, .texts = 2});
    initialize(engine);
    const std::vector<float> want = engine.extend({{0, 0, tokens_of(2, {0, 6})}});
    engine.extend({{0, 4, tokens_of(0, {4, 8})}});
    EXPECT_EQ(engine.extend({{0, 5, tokens_of(2, {5, 6})}}).size(), want.size());
    engine.extend({{0, 2, tokens_of(2, {2, 5})}});
    const std::vector<float> again = engine.extend({{0, 5, tokens_of(2, {5, 6})}});
    for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(again[i], want[i], 1e-5);
  });
  runtime::Texts texts({.each = 1, .sharers = 2, .positions = 9, .most_rows = 4, .multiple = 2});
  const auto by_sharer = texts.extend({{0, 0, tokens_of(0, {0, 5})}, {1, 0, tokens_of(1, {0, 1})}});
  ASSERT_EQ(by_sharer.size(), 2u);
  ASSERT_EQ(by_sharer[0].size(), 2u);
  EXPECT_EQ(by_sharer[0][0].rows.positions, (std::vector<int32_t>{0, 1, 2, 3}));
  EXPECT_EQ(by_sharer[0][0].wanted.size(), 0);
  EXPECT_EQ(by_sharer[0][1].rows.positions, (std::vector<int32_t>{4, 0}));
  EXPECT_EQ(by_sharer[0][1].rows.texts, (std::vector<int32_t>{0, -1}));
  EXPECT_EQ(by_sharer[0][1].wanted, (Range{0, 1}));
  EXPECT_EQ(by_sharer[0][1].parts, (std::vector<size_t>{0}));
  ASSERT_EQ(by_sharer[1].size(), 2u);
  EXPECT_EQ(by_sharer[1][0].parts, (std::vector<size_t>{1}));
  EXPECT_EQ(by_sharer[1][1].rows.texts, (std::vector<int32_t>{-1, -1}));
}

TEST(Texts, RejectPartsThatDoNotFit) {
  comm::run_ranks(1, [&](comm::Communicator& world) {
    runtime::Engine without(config_of({}, 1), cut_gpt(true), world, {.inference = true});
    EXPECT_EQ(without.texts(), 0);
    expect_error(Exit::internal, {"keeps no keys and values"}, [&] { without.extend({{0, 0, {1}}}); });
    runtime::Engine engine(config_of({}, 1), cut_gpt(true), world, {.inference = true, .texts = 2});
    const auto refuses = [&](const std::string& words, const std::vector<runtime::TextPart>& parts) {
      expect_error(Exit::internal, {words}, [&] { engine.extend(parts); });
    };
    refuses("no part of a text", {});
    refuses("text 2 of 2", {{2, 0, {1}}});
    refuses("text 1 has two parts", {{1, 0, {1}}, {1, 1, {1}}});
    refuses("positions 1 to 2 of text 0, which has 0 of at most 8", {{0, 1, {1}}});
    refuses("positions 0 to 9 of text 0", {{0, 0, std::vector<int32_t>(9, 1)}});
    refuses("positions 0 to 0 of text 0", {{0, 0, {}}});
    expect_error(Exit::internal, {"EngineOptions::texts is for inference"},
                 [&] { runtime::Engine(config_of({}, 1), cut_gpt(true), world, {.texts = 1}); });
    expect_error(Exit::data, {"99"}, [&] { engine.extend({{0, 0, {99}}}); });
  });
}

}  // namespace
}  // namespace cleave::testing
