// Handwritten digits: an MLP learns 1,437 images of 8 x 8 pixels on any number of ranks and is
// tested on 360 others.
//   scripts/fetch_digits.sh digits.csv.gz
//   cleave launch -n 2 -- build/release/bin/digits digits.csv.gz examples/digits/ds_config.json
#include <algorithm>
#include <cstdio>

#include "cleave.h"
#include "data/csv.h"

using namespace cleave;

namespace {

constexpr int64_t kEpochs = 20;

// Copies rows of the data set into a batch; rows past the end have no label.
struct Rows {
  explicit Rows(int64_t count) : x(size_t(count * data::Digits::kFeatures)), y(size_t(count)) {}
  void set(int64_t at, const data::Digits& from, int64_t row) {
    const int64_t there = std::min(row, from.rows() - 1);
    std::copy_n(from.features.data() + there * data::Digits::kFeatures, data::Digits::kFeatures,
                x.data() + at * data::Digits::kFeatures);
    y[size_t(at)] = row < from.rows() ? from.labels[size_t(row)] : kIgnoredTarget;
  }
  Batch batch() const { return batch_of(x, y); }
  std::vector<float> x;
  std::vector<int32_t> y;
};

// Returns the accuracy; each rank evaluates its share of the rows. Collective.
double accuracy(runtime::Engine& engine, const data::Digits& test) {
  const int64_t micro = engine.samples_per_micro();
  const int place = engine.place().data, places = engine.mesh().data;
  Rows rows(micro);
  const runtime::Evaluation seen = engine.evaluate(
      [&](int m) {
        const Range mine = data::micro_batch_positions(m, place, places, micro);
        for (int64_t i = 0; i < micro; ++i) rows.set(i, test, mine.begin + i);
        return rows.batch();
      },
      int(ceil_div(test.rows(), micro * places)));
  return seen.accuracy().value();
}

int train(Job& job, const char* csv, const char* config_file) {
  const DsConfig config = job.read_config(config_file).config;
  const data::DigitsSplit data = data::split_digits(data::read_digits(csv));
  const ModelFactory make = [&](const Axes& axes) {
    return make_mlp({{data::Digits::kFeatures, 64, data::Digits::kClasses}}, model_dtype(config), "digits",
                    axes);
  };
  Engine engine(config, make, job.connect(config), {.device = job.device()});

  const int64_t micro = engine.samples_per_micro();
  const Sampler sampler{.samples = data.train.rows(), .seed = 1, .global_batch = config.train_batch_size};
  const int place = engine.place().data;  // the ranks of a pipeline take the same samples
  Rows rows(micro);
  for (int64_t step = 0; step < kEpochs * sampler.steps_per_epoch(); ++step) {
    const StepResult r = engine.train_batch([&](int m) {
      const Range mine = data::micro_batch_positions(m, place, engine.mesh().data, micro);
      for (int64_t i = 0; i < micro; ++i) rows.set(i, data.train, sampler.sample(step, mine.begin + i));
      return rows.batch();
    });
    if (job.first() && (step + 1) % (5 * sampler.steps_per_epoch()) == 0)
      std::printf("epoch %2lld  loss %.4f\n", (long long)sampler.epoch(step) + 1, r.loss);
  }
  const double right = accuracy(engine, data.test);
  if (job.first())
    std::printf("accuracy on %lld held-out digits: %.2f %%\n", (long long)data.test.rows(), 100 * right);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: digits digits.csv.gz ds_config.json\n");
    return int(Exit::usage);
  }
  return run_job([&](Job& job) { return train(job, argv[1], argv[2]); });
}
