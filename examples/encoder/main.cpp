// An encoder model defined by the program: an image of 8 x 8 pixels is a sequence of 8 rows, each
// row attends to all rows, and the mean of the outputs is classified. Any number of ranks, ZeRO
// stage and pipeline:
//   scripts/fetch_digits.sh digits.csv.gz
//   cleave launch -n 2 -- build/release/bin/encoder digits.csv.gz
// With "plan" it prints the memory of each rank of a job, here of 8 ranks, and trains nothing:
//   build/release/bin/encoder plan 8
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "cleave.h"
#include "data/csv.h"

using namespace cleave;

namespace {

constexpr int64_t kRows = 8, kPixels = 8, kWidth = 32, kClasses = data::Digits::kClasses, kSteps = 600;

constexpr std::string_view kConfig = R"({
  "train_batch_size": 32, "gradient_accumulation_steps": 1,
  "optimizer": {"type": "AdamW", "params": {"lr": 2e-3, "weight_decay": 0.01}},
  "gradient_clipping": 1.0,
  "zero_optimization": {"stage": 2}})";

// y = x weight^T, plus a learned vector for each row of an image.
class EmbedRows final : public Layer {
 public:
  std::vector<UnitSpec> units() const override {
    const Init init{Init::Kind::normal, 0.2f};
    return {{"embed",
             {{"embed.weight", {kWidth, kPixels}, init, true}, {"embed.row", {kRows, kWidth}, init, true}}}};
  }
  TensorSpec output(const TensorSpec& in) const override { return {in.dtype, {in.shape[0], kWidth}}; }
  void forward(const ForwardArgs& a) const override {
    Linear{kPixels, kWidth, a.params[0]}.forward(a.y, a.x, a.stream);
    a.stream.enqueue([y = a.y, row = a.params[1]] {
      for (int64_t i = 0; i < y.numel(); ++i) y.as<float>()[i] += row.as<float>()[i % row.numel()];
    });
  }
  void backward(const BackwardArgs& a) const override {
    Linear{kPixels, kWidth, a.params[0]}.backward(a.dx, a.dy, a.x, a.grads[0], nullptr, a.stream);
    a.stream.enqueue([dy = a.dy, drow = a.grads[1].tensor, add = a.grads[1].accumulate()] {
      for (int64_t i = 0; i < drow.numel() && !add; ++i) drow.as<float>()[i] = 0;
      for (int64_t i = 0; i < dy.numel(); ++i) drow.as<float>()[i % drow.numel()] += dy.as<float>()[i];
    });
  }
};

// One output row per image: the mean of its rows.
class MeanOfRows final : public Layer {
 public:
  std::vector<UnitSpec> units() const override { return {}; }
  TensorSpec output(const TensorSpec& in) const override { return {in.dtype, {in.shape[0] / kRows, kWidth}}; }
  void forward(const ForwardArgs& a) const override {
    a.stream.enqueue([y = a.y, x = a.x] {
      std::fill_n(y.as<float>(), y.numel(), 0.0f);
      for (int64_t i = 0; i < x.numel(); ++i)
        y.as<float>()[i / (kRows * kWidth) * kWidth + i % kWidth] += x.as<float>()[i] / kRows;
    });
  }
  void backward(const BackwardArgs& a) const override {
    a.stream.enqueue([dx = a.dx, dy = a.dy] {
      for (int64_t i = 0; i < dx.numel(); ++i)
        dx.as<float>()[i] = dy.as<float>()[i / (kRows * kWidth) * kWidth + i % kWidth] / kRows;
    });
  }
};

// Attention without a causal mask, and an MLP.
std::unique_ptr<Layer> make_block(const std::string& name) {
  const Init init{Init::Kind::normal, 0.1f};
  auto attention = std::make_unique<AttentionHalf>(AttentionHalf::Config{.name = name,
                                                                         .width = kWidth,
                                                                         .seq = kRows,
                                                                         .heads = 4,
                                                                         .kv_heads = 4,
                                                                         .head_dim = kWidth / 4,
                                                                         .causal = false,
                                                                         .qkv = {name + ".qkv"},
                                                                         .out = name + ".out",
                                                                         .init = init,
                                                                         .out_init = init},
                                                   Axes());
  auto mlp = std::make_unique<MlpHalf>(MlpHalf::Config{.name = name,
                                                       .width = kWidth,
                                                       .hidden = 4 * kWidth,
                                                       .up = {name + ".up"},
                                                       .down = name + ".down",
                                                       .up_bias = true,
                                                       .down_bias = true,
                                                       .init = init,
                                                       .down_init = init},
                                       TensorAxis());
  const auto norm = [&](const char* which) { return Norm(Norm::Kind::layer, name + which, kWidth, 1e-5f); };
  return std::make_unique<Block>(name, Block::Branch{"attn", norm(".norm1"), std::move(attention)},
                                 Block::Branch{"mlp", norm(".norm2"), std::move(mlp)}, RowDropout{});
}

Model make_encoder() {
  Model m;
  m.name = "encoder";
  m.layers.push_back(std::make_unique<EmbedRows>());
  for (const char* name : {"block.0", "block.1"}) m.layers.push_back(make_block(name));
  m.layers.push_back(std::make_unique<MeanOfRows>());
  m.head = std::make_unique<ClassifierHead>(ClassifierHead::Config{
      .unit = "head", .weight = "head.weight", .bias = "head.bias", .classes = kClasses, .width = kWidth});
  m.sample = {DType::fp32, {kRows, kPixels}};  // 8 rows per sample, one target (rows_per_sample)
  return m;
}

// A batch of images, selected by index.
struct Pictures {
  Pictures(const data::Digits& all, int64_t count)
      : from(all), x(size_t(count * data::Digits::kFeatures)), y(size_t(count)) {}
  template <class RowOf>
  Batch take(RowOf row_of) {
    for (int64_t i = 0; i < int64_t(y.size()); ++i) {
      const int64_t row = row_of(i);
      const int64_t there = std::min(row, from.rows() - 1);
      std::copy_n(from.features.data() + there * data::Digits::kFeatures, data::Digits::kFeatures,
                  x.data() + i * data::Digits::kFeatures);
      y[size_t(i)] = row < from.rows() ? from.labels[size_t(row)] : kIgnoredTarget;
    }
    return batch_of(x, y);
  }
  const data::Digits& from;
  std::vector<float> x;
  std::vector<int32_t> y;
};

// Evaluates the images; each rank takes its share, and rows past the end have no label. Collective.
runtime::Evaluation evaluate(runtime::Engine& engine, const data::Digits& test) {
  const int64_t micro = engine.samples_per_micro();
  const int place = engine.place().data, places = engine.mesh().data;
  Pictures pictures(test, micro);
  return engine.evaluate(
      [&](int m) {
        const Range mine = data::micro_batch_positions(m, place, places, micro);
        return pictures.take([&](int64_t i) { return mine.begin + i; });
      },
      int(ceil_div(test.rows(), micro * places)));
}

int train(Job& job, const char* csv) {
  const DsConfig config = job.read_config_text(kConfig, "built-in").config;
  const data::DigitsSplit data = data::split_digits(data::read_digits(csv));
  Engine engine(config, make_encoder(), job.connect(config), {});
  Progress progress(
      {.out = job.first() ? stdout : nullptr, .total = kSteps, .is_terminal = isatty(STDOUT_FILENO) != 0});
  std::optional<MetricsFile> metrics;
  if (job.first()) metrics.emplace("encoder.jsonl");

  const Sampler sampler{.samples = data.train.rows(), .seed = 1, .global_batch = config.train_batch_size};
  const int64_t micro = engine.samples_per_micro();
  Pictures pictures(data.train, micro);
  for (int64_t step = 0; step < kSteps; ++step) {
    const StepResult r = engine.train_batch([&](int m) {
      const Range mine = data::micro_batch_positions(m, engine.place().data, engine.mesh().data, micro);
      return pictures.take([&](int64_t i) { return sampler.sample(step, mine.begin + i); });
    });
    progress.step(r.step, r.loss, config.train_batch_size * kRows);
    if (metrics) metrics->step({.step = r.step, .loss = r.loss, .lr = r.lr, .grad_norm = r.grad_norm});
  }
  progress.finish();
  engine.save_checkpoint("encoder", "last");
  const Evaluation seen = evaluate(engine, data.test);
  const double right = seen.accuracy().value();
  if (metrics) metrics->evaluation({.step = kSteps, .loss = seen.loss, .accuracy = right});
  if (job.first())
    std::printf("accuracy on %lld held-out digits: %.2f %%\n", (long long)data.test.rows(), 100 * right);
  return 0;
}

// Prints the memory plan of a job with `world` ranks without starting it.
int show_plan(int world) {
  const ReadResult read = read_ds_config(kConfig, "built-in", {.world_size = world});
  const JobPlan plan = plan_job(read.config, world, [&](Communicator& ranks, const EngineOptions& options) {
    return std::make_unique<Engine>(read.config, make_encoder(), ranks, options);
  });
  std::fputs(format(plan).c_str(), stdout);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && std::string_view(argv[1]) == "plan")
    return run_job([&](Job&) { return show_plan(std::atoi(argv[2])); });
  if (argc != 2) {
    std::fprintf(stderr, "usage: encoder digits.csv.gz, or encoder plan RANKS\n");
    return int(Exit::usage);
  }
  return run_job([&](Job& job) { return train(job, argv[1]); }, {.device = "cpu"});
}
