// A whole training program: an MLP learns which quadrant a point lies in. Start it alone, or on several ranks
// with
//   cleave launch -n 2 -- build/release/bin/train_mlp
#include <cstdio>

#include "comm/rendezvous.h"
#include "config_schema/read_config.h"
#include "core/philox.h"
#include "launcher/discovery.h"
#include "model/mlp.h"
#include "runtime/engine.h"

using namespace cleave;

int main() try {
  const auto world = connect(discover_ranks(environment_of_process()).info);
  Communicator& ranks = world->communicator();
  const ReadResult config = read_ds_config(R"({
      "train_micro_batch_size_per_gpu": 64, "gradient_accumulation_steps": 1,
      "optimizer": {"type": "Adam", "params": {"lr": 1e-2}},
      "zero_optimization": {"stage": 2}})",
                                           "built-in", {.world_size = ranks.size()});
  require(config.ok(), Exit::usage, "{}", format(config.problems));
  Engine engine(config.config, make_mlp({{2, 32, 4}}, model_dtype(config.config)), ranks, {});

  std::vector<float> points(128);
  std::vector<int32_t> quadrants(64);
  for (int step = 1; step <= 200; ++step) {
    const StepResult r = engine.train_batch([&](int) {
      for (size_t i = 0; i < 64; ++i) {
        const uint64_t at = (uint64_t(step) * uint64_t(ranks.size()) + uint64_t(ranks.rank())) * 64 + i;
        const float x = points[2 * i] = Philox{1, 1}.uniform(at) - 0.5f,
                    y = points[2 * i + 1] = Philox{1, 2}.uniform(at) - 0.5f;
        quadrants[i] = (x > 0) + 2 * (y > 0);
      }
      return Batch{.input = Tensor(points.data(), DType::fp32, {64, 2}),
                   .targets = Tensor(quadrants.data(), DType::int32, {64}),
                   .valid_targets = 64};
    });
    if (ranks.rank() == 0 && step % 50 == 0) std::printf("step %3d  loss %.4f\n", step, r.loss);
  }
  world->leave();
} catch (const Error& e) {
  std::fprintf(stderr, "error: %s\n", e.what());
  return int(e.exit());
}
