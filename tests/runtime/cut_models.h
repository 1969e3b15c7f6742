// Small models with layers that a tensor axis can cut over 1, 2 and 4 ranks, and layouts to train them.
#pragma once
#include "tests/runtime/compare.h"

namespace cleave::testing {

inline constexpr int64_t kTokens = 8;  // per sample; the ranks that cut rows must divide them

struct Layout {
  int pipe = 1, data = 1, tensor = 1, zero = 0;
  const char* schedule = "1f1b";
  bool offload = false, cut_rows = true;
  int sequence = 1;
  bool clips = true;  // otherwise the backward overlaps updates of units
  int ranks() const { return pipe * data * sequence * tensor; }
  std::string text() const {
    return fmt::format("pipe {} data {} sequence {} tensor {} zero {} {}{}{}{}", pipe, data, sequence, tensor,
                       zero, schedule, offload ? " offload" : "", cut_rows ? "" : " whole rows",
                       clips ? "" : " no clipping");
  }
};

inline config::DsConfig config_of(const Layout& l, int accumulation, int micro = 1) {
  config::DsConfig c = config_for(l.data, micro, accumulation);
  c.sequence_parallel_size = l.sequence;
  c.pipeline.stages = l.pipe, c.pipeline.schedule = l.schedule;
  c.pipeline.virtual_stages = l.pipe > 1 && std::string_view(l.schedule) == "interleaved" ? 2 : 1;
  c.tensor_parallel.autotp_size = l.tensor, c.tensor_parallel.sequence_parallel = l.cut_rows;
  c.zero.stage = l.zero, c.zero.overlap_comm = l.zero == 3;
  if (l.offload) c.zero.offload_optimizer.device = config::OffloadDevice::cpu;
  c.gradient_clipping = l.clips ? 1 : 0;
  return c;
}

// A vocabulary that no number of ranks divides, an unused parameter, and an untied head unless `tied`.
inline runtime::ModelFactory cut_gpt(bool tied, DType type = DType::fp32, float dropout = 0) {
  return [=](const model::Axes& axes) {
    model::Model m = model::make_model(model::kGpt2,
                                       {.vocab = kVocab,
                                        .positions = 11,
                                        .width = 16,
                                        .layers = 2,
                                        .heads = 4,
                                        .dropout = dropout,
                                        .attention_dropout = dropout},
                                       type, kTokens, "cut", axes);
    m.layers.insert(m.layers.begin() + 2, std::make_unique<Idle>());
    if (!tied)
      m.head =
          std::make_unique<model::ClassifierHead>(model::ClassifierHead::Config{.unit = "lm_head",
                                                                                .weight = "lm_head.weight",
                                                                                .classes = kVocab,
                                                                                .width = 16,
                                                                                .axis = axes.tensor});
    return m;
  };
}

// Grouped heads wider than width / heads, and biases on everything that can have them. Four ranks share two
// key/value heads. With normalized heads two elements are too few: a small one amplifies its rounding.
inline runtime::ModelFactory cut_decoder(const model::Family& family, bool tied, DType type = DType::fp32,
                                         int64_t kv_heads = 2, int64_t head_dim = 2) {
  return [=, &family](const model::Axes& axes) {
    return model::make_model(family,
                             {.vocab = kVocab,
                              .positions = 11,
                              .width = 13,
                              .layers = 3,
                              .heads = 8,
                              .kv_heads = kv_heads,
                              .head_dim = head_dim,
                              .mlp_width = 20,
                              .tied = tied,
                              .qkv_bias = true,
                              .output_bias = true,
                              .init_scale = 0.1f},
                             type, kTokens, "cut", axes);
  };
}
inline runtime::ModelFactory cut_llama(bool tied, DType type = DType::fp32) {
  return cut_decoder(model::kLlama, tied, type);
}

// Expects equal runs on all ranks and returns the first one's. The memory plan must equal the peak on every
// rank.
inline Training train_on_all(const Layout& l, const config::DsConfig& c, const runtime::ModelFactory& model,
                             int steps, const runtime::EngineOptions& options = {}) {
  std::vector<Training> runs{size_t(l.ranks())};
  comm::run_ranks(l.ranks(), [&](comm::Communicator& world) {
    runtime::Engine engine(c, model, world, options);
    runs[size_t(world.rank())] = train(engine, world, steps, kTokens);
    EXPECT_EQ(engine.memory_planned(), engine.memory_peak()) << l.text() << " rank " << world.rank();
    EXPECT_EQ(engine.memory_planned(), engine.memory_live()) << l.text() << " rank " << world.rank();
  });
  for (size_t r = 1; r < runs.size(); ++r)
    expect_same_bits(runs[r], runs[0], fmt::format("{} rank {}", l.text(), r));
  return std::move(runs[0]);
}

// Returns the largest difference of an element relative to the largest element of its tensor, maximized over
// tensors: an element's own size does not measure the sums it comes from.
inline double largest_difference(const Weights& got, const Weights& want, std::string* where = nullptr) {
  double worst = 0;
  for (const auto& [name, values] : want) {
    double largest = 0, difference = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      largest = std::max(largest, std::abs(double(values[i])));
      difference = std::max(difference, std::abs(double(values[i]) - got.at(name)[i]));
    }
    if (difference <= worst * largest) continue;
    worst = difference / largest;
    if (where) *where = name;
  }
  return worst;
}

inline void expect_close(const Training& got, const Training& want, double bound, const std::string& what) {
  ASSERT_EQ(got.steps.size(), want.steps.size());
  for (size_t s = 0; s < want.steps.size(); ++s) {
    EXPECT_NEAR(got.steps[s].loss, want.steps[s].loss, bound * want.steps[s].loss) << what << ", step " << s;
    EXPECT_NEAR(got.steps[s].grad_norm, want.steps[s].grad_norm, bound * want.steps[s].grad_norm)
        << what << ", step " << s;
  }
  EXPECT_LT(relative_distance(got.weights, want.weights), bound) << what;
  // A bias that started at 0 consists of updates only, and Adam's update divides a sum's rounding by epsilon.
  std::string where;
  const double difference = largest_difference(got.weights, want.weights, &where);
  EXPECT_LT(difference, 4 * bound) << what << ", " << where;
}

}  // namespace cleave::testing
