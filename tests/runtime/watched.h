// A small watched model, its training data, and its layouts.
#pragma once
#include <algorithm>
#include <set>

#include "tests/runtime/cut_models.h"
#include "tests/runtime/watch.h"

namespace cleave::testing {

inline constexpr int64_t kBatch = 8;

// One watch sees the raw data, the other the trained activations.
inline model::Model watched(DType dtype = DType::fp32, float weight = 0.3f, float outer = 0) {
  model::Model m = model::make_mlp({{3, 8, 8, 4}}, dtype, "watched");
  m.layers.insert(m.layers.begin() + 1, std::make_unique<Watch>("inner", weight));
  m.layers.insert(m.layers.begin(), std::make_unique<Watch>("outer", outer));
  return m;
}

// Rows of a step; the largest value of all is in one row of step 1.
inline std::vector<float> features(int64_t step) {
  std::vector<float> x(size_t(kBatch * 3));
  const Philox random{5, uint64_t(step)};
  for (size_t i = 0; i < x.size(); ++i) x[i] = float(random.word(i) % 1000) / 1000 - 0.5f;
  if (step == 1) x[size_t(3 * 5 + 1)] = -2.5f;
  return x;
}

struct Data {
  std::vector<float> x;
  std::vector<uint16_t> half;
  std::vector<int32_t> y;
  std::set<int64_t> hidden = {};  // samples without a target
  BatchSource of(int64_t step, const config::DsConfig& c, int rank, int ranks, DType dtype = DType::fp32) {
    x = features(step);
    return [this, &c, rank, ranks, dtype](int micro) {
      const int64_t n = c.train_micro_batch_size_per_gpu, first = (int64_t(micro) * ranks + rank) * n;
      y.clear(), half.clear();
      for (int64_t i = first; i < first + n; ++i)
        y.push_back(hidden.contains(i) ? -100 : int32_t(x[size_t(3 * i)] > 0 ? i % 2 : 2 + i % 2));
      Tensor input(x.data() + 3 * first, DType::fp32, {n, 3}, MemoryKind::host);
      if (dtype == DType::fp16) {
        half.resize(size_t(3 * n));
        const Tensor to(half.data(), dtype, {n, 3}, MemoryKind::host);
        for (int64_t i = 0; i < 3 * n; ++i) to.as<fp16>()[i] = from_float<fp16>(input.as<float>()[i]);
        input = to;
      }
      return Batch{.input = input,
                   .targets = Tensor(y.data(), DType::int32, {n}, MemoryKind::host),
                   .valid_targets = n - std::count(y.begin(), y.end(), -100)};
    };
  }
};

struct Ranks {
  int ranks = 1, stage = 0, pipe = 1;
  int64_t micro_batch = kBatch;
  int64_t recompute = 0;
  std::string schedule = "1f1b";
};

inline config::DsConfig watching(const Ranks& l) {
  const int data = l.ranks / l.pipe;
  config::DsConfig c = config_for(data, l.micro_batch, kBatch / (l.micro_batch * data));
  c.zero.stage = l.stage;
  c.pipeline.stages = l.pipe, c.pipeline.schedule = l.schedule;
  c.checkpointing.interval = l.recompute;
  c.optimizer.type = config::OptimizerType::sgd, c.optimizer.lr = 0.1;
  return c;
}

inline std::string words_of(const Ranks& l) {
  return fmt::format("{} ranks, stage {}, pipe {}, micro-batch {}, recompute {}, {}", l.ranks, l.stage,
                     l.pipe, l.micro_batch, l.recompute, l.schedule);
}

}  // namespace cleave::testing
