// A complete training program: an MLP classifies points by their quadrant, on CPUs or GPUs. Start
// it alone or on several ranks:
//   cleave launch -n 2 -- build/release/bin/train_mlp [ds_config.json]
#include <cstdio>

#include "../quadrants.h"

using namespace cleave;

constexpr std::string_view kConfig = R"({
  "train_micro_batch_size_per_gpu": 64, "gradient_accumulation_steps": 1,
  "optimizer": {"type": "Adam", "params": {"lr": 1e-2}},
  "zero_optimization": {"stage": 2}})";

int train(Job& job, const char* file) {
  // An invalid configuration ends the program here on every rank; the first rank prints the errors.
  const ReadResult read = file ? job.read_config(file) : job.read_config_text(kConfig, "built-in");
  const DsConfig& config = read.config;

  // Called with this rank's axes, which may cut the layers.
  const ModelFactory make = [&](const Axes& axes) {
    return make_mlp({{2, 32, 4}}, model_dtype(config), "quadrants", axes);
  };
  Engine engine(config, make, job.connect(config), {.device = job.device()});

  // Ranks with the same data coordinate, such as the stages of a pipeline, take the same points.
  Quadrants data(engine.samples_per_micro(), engine.place().data, engine.mesh().data);
  for (int step = 1; step <= 200; ++step) {
    const StepResult r = engine.train_batch([&](int) { return data.next(); });
    if (job.first() && step % 50 == 0) std::printf("step %3d  loss %.4f\n", step, r.loss);
  }
  return 0;
}

int main(int argc, char** argv) {
  return run_job([&](Job& job) { return train(job, argc > 1 ? argv[1] : nullptr); });
}
