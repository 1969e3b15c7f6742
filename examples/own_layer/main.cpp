// A layer of one's own inside a model of the library: a learned gain for each column, before an MLP that
// learns in which quadrant a point lies. Trained on any number of CPU ranks and at any ZeRO stage without a
// word about either:
//   cleave launch -n 2 -- build/release/bin/own_layer
#include <cstdio>

#include "comm/rendezvous.h"
#include "config_schema/read_config.h"
#include "core/philox.h"
#include "launcher/discovery.h"
#include "model/mlp.h"
#include "runtime/engine.h"

using namespace cleave;

// y = x * gain, column by column, in fp32 on the CPU.
class Gain final : public Layer {
 public:
  Gain(std::string name, int64_t width) : name_(std::move(name)), width_(width) {}

  // One unit of parameters: what ZeRO shards, gathers and offloads together. No weight decay.
  std::vector<UnitSpec> units() const override {
    return {{name_, {{name_ + ".weight", {width_}, {Init::Kind::ones}, false}}}};
  }
  TensorSpec output(const TensorSpec& in) const override { return in; }

  // Elements are touched in tasks of the stream: the same call also runs without memory, to plan it.
  void forward(const ForwardArgs& a) const override {
    a.stream.enqueue([y = a.y, x = a.x, gain = a.params[0], width = width_] {
      for (int64_t i = 0; i < y.numel(); ++i)
        y.as<float>()[i] = x.as<float>()[i] * gain.as<float>()[i % width];
    });
  }

  // dx is undefined where nobody needs it; accumulate() says whether another micro-batch has been here
  // before.
  void backward(const BackwardArgs& a) const override {
    a.stream.enqueue([dx = a.dx, dy = a.dy, x = a.x, gain = a.params[0], dgain = a.grads[0].tensor,
                      add = a.grads[0].accumulate(), width = width_] {
      for (int64_t c = 0; c < width && !add; ++c) dgain.as<float>()[c] = 0;
      for (int64_t i = 0; i < dy.numel(); ++i) {
        dgain.as<float>()[i % width] += dy.as<float>()[i] * x.as<float>()[i];
        if (dx.defined()) dx.as<float>()[i] = dy.as<float>()[i] * gain.as<float>()[i % width];
      }
    });
  }

 private:
  std::string name_;
  int64_t width_;
};

int main() try {
  const auto world = connect(discover_ranks(environment_of_process()).info);
  Communicator& ranks = world->communicator();
  const ReadResult config = read_ds_config(R"({
      "train_micro_batch_size_per_gpu": 64, "gradient_accumulation_steps": 1,
      "optimizer": {"type": "Adam", "params": {"lr": 1e-2}},
      "zero_optimization": {"stage": 3}})",
                                           "built-in", {.world_size = ranks.size()});
  require(config.ok(), Exit::usage, "{}", format(config.problems));
  Model model = make_mlp({{2, 32, 4}}, model_dtype(config.config));
  model.layers.insert(model.layers.begin(), std::make_unique<Gain>("gain", 2));
  Engine engine(config.config, std::move(model), ranks, {});

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
  const std::vector<float> gain = engine.parameter("gain.weight");  // collective
  if (ranks.rank() == 0) std::printf("learned gains: %.2f %.2f\n", gain[0], gain[1]);
  world->leave();
} catch (const Error& e) {
  std::fprintf(stderr, "error: %s\n", e.what());
  return int(e.exit());
}
