// Models and data small enough for hundreds of trainings, with the irregularities of real ones: odd parameter
// counts, a tied unit, a unit smaller than the number of ranks, and an unused parameter.
#pragma once
#include <map>

#include "comm/communicator.h"
#include "config_schema/ds_config.h"
#include "core/philox.h"
#include "model/classifier_head.h"
#include "model/family.h"
#include "model/mlp.h"
#include "runtime/engine.h"
#include "tests/runtime/identity.h"

namespace cleave::testing {

// Identity layer with an unused parameter.
class Idle final : public Identity {
 public:
  std::vector<UnitSpec> units() const override {
    return {{"idle", {{"idle.unused", {3}, {Init::Kind::normal, 1.0f}, true}}}};
  }
};

inline constexpr int64_t kVocab = 29, kSeq = 7;

inline model::Model gpt_with_idle(const char* name, int layers, DType dtype, float dropout) {
  model::Model m = model::make_model(model::kGpt2,
                                     {.vocab = kVocab,
                                      .positions = 11,
                                      .width = 12,
                                      .layers = layers,
                                      .heads = 3,
                                      .dropout = dropout,
                                      .attention_dropout = dropout},
                                     dtype, kSeq, name);
  m.layers.insert(m.layers.begin() + layers / 2 + 1, std::make_unique<Idle>());
  return m;
}

inline model::Model small_gpt(DType dtype = DType::fp32, float dropout = 0) {
  return gpt_with_idle("small", 2, dtype, dropout);
}

// Grouped heads wider than width / heads, biases on everything that can have them, and an untied head.
inline model::Model small_llama(DType dtype = DType::fp32, const model::Family& family = model::kLlama,
                                int layers = 2) {
  return model::make_model(family,
                           {.vocab = kVocab,
                            .positions = 11,
                            .width = 13,
                            .layers = layers,
                            .heads = 4,
                            .kv_heads = 2,
                            .head_dim = 6,
                            .mlp_width = 17,
                            .qkv_bias = true,
                            .output_bias = true,
                            .init_scale = 0.1f},
                           dtype, kSeq, "small");
}

// Like Qwen2: a tied head, and biases only before attention.
inline model::Model small_qwen2(DType dtype = DType::fp32) {
  return model::make_model(model::kLlama,
                           {.vocab = kVocab,
                            .positions = 11,
                            .width = 12,
                            .layers = 2,
                            .heads = 3,
                            .kv_heads = 1,
                            .head_dim = 4,
                            .mlp_width = 10,
                            .tied = true,
                            .qkv_bias = true,
                            .init_scale = 0.1f},
                           dtype, kSeq, "small qwen2");
}

// Enough layers for 4 stages of 2 chunks: embedding, blocks, Idle, final norm.
inline model::Model deep_gpt(bool tied, DType dtype = DType::fp32, float dropout = 0) {
  model::Model m = gpt_with_idle("deep", 5, dtype, dropout);
  if (!tied)
    m.head = std::make_unique<model::ClassifierHead>(model::ClassifierHead::Config{
        .unit = "lm_head", .weight = "lm_head.weight", .classes = kVocab, .width = 12});
  return m;
}

// The same number of layers for small_llama().
inline model::Model deep_llama(DType dtype = DType::fp32) { return small_llama(dtype, model::kLlama, 6); }

inline config::DsConfig config_for(int ranks, int64_t micro_batch = 1, int64_t accumulation = 1) {
  config::DsConfig c;
  c.train_micro_batch_size_per_gpu = micro_batch;
  c.gradient_accumulation_steps = accumulation;
  c.train_batch_size = micro_batch * accumulation * ranks;
  c.optimizer.lr = 0.003;
  c.optimizer.weight_decay = 0.1;
  c.zero.stage3_param_persistence_threshold = 0;
  return c;
}

// Random tokens with a successor that depends on the token, so that there is something to learn; sample s of
// step t is the same for every caller.
class Tokens {
 public:
  Tokens(int64_t samples, int64_t seq = kSeq, int64_t vocab = kVocab)
      : samples_(samples), seq_(seq), vocab_(vocab), input_(size_t(samples * seq)), targets_(input_.size()) {}

  Batch at(int64_t step, int64_t first_sample) {
    const Philox random{11, 3};
    for (int64_t s = 0; s < samples_; ++s)
      for (int64_t t = 0; t < seq_; ++t) {
        const auto place = uint64_t((step * 64 + first_sample + s) * 1000 + t);
        input_[size_t(s * seq_ + t)] = int32_t(random.word(place) % uint32_t(vocab_));
        targets_[size_t(s * seq_ + t)] = int32_t((3 * input_[size_t(s * seq_ + t)] + 1) % vocab_);
      }
    return {.input = Tensor(input_.data(), DType::int32, {int64_t(input_.size())}, MemoryKind::host),
            .targets = Tensor(targets_.data(), DType::int32, {int64_t(targets_.size())}, MemoryKind::host),
            .valid_targets = int64_t(targets_.size()),
            .position = {.first_sample = first_sample}};
  }

 private:
  int64_t samples_, seq_, vocab_;
  std::vector<int32_t> input_, targets_;
};

// The global batch does not depend on the ranks: micro-batch (micro, rank) takes samples from (micro * ranks
// + rank) on.
inline BatchSource source(Tokens& tokens, const config::DsConfig& c, int64_t step, int rank, int ranks) {
  return [&tokens, &c, step, rank, ranks](int micro) {
    return tokens.at(step, (int64_t(micro) * ranks + rank) * c.train_micro_batch_size_per_gpu);
  };
}

using Weights = std::map<std::string, std::vector<float>>;

inline Weights weights_of(runtime::Engine& engine) {
  Weights w;
  auto add = [&](const std::vector<UnitSpec>& units) {
    for (const UnitSpec& u : units)
      for (const ParamSpec& p : u.params)
        if (!w.contains(p.name)) w[p.name] = engine.parameter(p.name);
  };
  for (const auto& layer : engine.model().layers) add(layer->units());
  add(engine.model().head->units());
  return w;
}

struct Training {
  Weights weights;
  std::vector<runtime::StepResult> steps;
};

// Trains and returns this rank's results.
inline Training train(runtime::Engine& engine, comm::Communicator& world, int steps, int64_t seq = kSeq) {
  const config::DsConfig& c = engine.config();
  Tokens tokens(c.train_micro_batch_size_per_gpu, seq);
  Training run;
  const int place = engine.mesh().place(world.rank()).data, ranks = engine.mesh().data;
  for (int step = 0; step < steps; ++step)
    run.steps.push_back(engine.train_batch(source(tokens, c, step, place, ranks)));
  run.weights = weights_of(engine);
  return run;
}

inline Training train(comm::Communicator& world, const config::DsConfig& c, model::Model model, int steps,
                      const runtime::EngineOptions& options = {}) {
  runtime::Engine engine(c, std::move(model), world, options);
  return train(engine, world, steps);
}

inline Training train_on(int ranks, const config::DsConfig& c, const std::function<model::Model()>& model,
                         int steps, const runtime::EngineOptions& options = {}) {
  Training run;
  comm::run_ranks(ranks, [&](comm::Communicator& world) {
    Training mine = train(world, c, model(), steps, options);
    if (world.rank() == 0) run = std::move(mine);
  });
  return run;
}

}  // namespace cleave::testing
