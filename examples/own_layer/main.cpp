// A custom layer in a model of the library: a learned gain for each column, before an MLP that
// classifies points by their quadrant. It trains on any number of CPU ranks and at any ZeRO stage
// without code for either:
//   cleave launch -n 2 -- build/release/bin/own_layer
#include <cstdio>

#include "../quadrants.h"

using namespace cleave;

// y = x * gain for each column, in fp32 on the CPU.
class Gain final : public Layer {
 public:
  Gain(std::string name, int64_t width) : name_(std::move(name)), width_(width) {}

  // One unit of parameters, which ZeRO shards, gathers and offloads together. No weight decay.
  std::vector<UnitSpec> units() const override {
    return {{name_, {{name_ + ".weight", {width_}, {Init::Kind::ones}, false}}}};
  }
  TensorSpec output(const TensorSpec& in) const override { return in; }

  // Tasks of the stream access the elements, so that the same call can run without memory, for the
  // plan.
  void forward(const ForwardArgs& a) const override {
    a.stream.enqueue([y = a.y, x = a.x, gain = a.params[0], width = width_] {
      for (int64_t i = 0; i < y.numel(); ++i)
        y.as<float>()[i] = x.as<float>()[i] * gain.as<float>()[i % width];
    });
  }

  // dx is undefined if it is not needed. accumulate() is true after the first micro-batch.
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

constexpr std::string_view kConfig = R"({
  "train_micro_batch_size_per_gpu": 64, "gradient_accumulation_steps": 1,
  "optimizer": {"type": "Adam", "params": {"lr": 1e-2}},
  "zero_optimization": {"stage": 3}})";

int train(Job& job) {
  const DsConfig config = job.read_config_text(kConfig, "built-in").config;
  Model model = make_mlp({{2, 32, 4}}, model_dtype(config));
  model.layers.insert(model.layers.begin(), std::make_unique<Gain>("gain", 2));
  Engine engine(config, std::move(model), job.connect(config), {});

  Quadrants data(engine.samples_per_micro(), engine.place().data, engine.mesh().data);
  for (int step = 0; step < 200; ++step) engine.train_batch([&](int) { return data.next(); });
  const double loss = engine.evaluate([&](int) { return data.next(); }, 4).loss;
  const std::vector<float> gain = engine.parameter("gain.weight");  // collective
  if (job.first()) std::printf("loss %.4f, learned gains: %.2f %.2f\n", loss, gain[0], gain[1]);
  return 0;
}

int main() { return run_job(train, {.device = "cpu"}); }
