#include "monitor/monitors.h"

#include <filesystem>
#include <span>
#include <string>
#include <utility>

#include "monitor/csv_monitor.h"
#include "monitor/metrics.h"
#include "monitor/tensorboard.h"

namespace cleave::monitor {
namespace {

// Adds points to the curves in a file; x is the number of trained samples.
template <class File>
class Curves final : public Sink {
 public:
  using Sink::take;
  Curves(std::string key, File file) : key_(std::move(key)), file_(std::move(file)) {}
  std::string name() const override { return key_; }
  EventKinds takes() const override { return kinds_of<Stepped, Evaluated, Measured>(); }
  void take(const Stepped& e) override { write(scalars_of(e.metrics), e.samples); }
  void take(const Evaluated& e) override { write(scalars_of(e.metrics), e.samples); }
  void take(const Measured& e) override { write({&e.scalar, 1}, e.samples); }

 private:
  void write(std::span<const Scalar> scalars, int64_t samples) {
    for (const Scalar& scalar : scalars) file_.scalar(scalar.tag, scalar.value, samples);
  }
  std::string key_;
  File file_;
};

}  // namespace

std::vector<std::unique_ptr<Sink>> monitors_of(const config::TensorBoardConfig& tensorboard,
                                               const config::CsvConfig& csv) {
  std::vector<std::unique_ptr<Sink>> sinks;
  if (tensorboard.enabled) {
    const std::filesystem::path base = tensorboard.output_path.empty() ? "./runs" : tensorboard.output_path;
    sinks.push_back(std::make_unique<Curves<TensorBoard>>(
        "tensorboard", TensorBoard((base / tensorboard.job_name).string())));
  }
  if (csv.enabled) {
    CsvMonitor tables(csv.output_path, csv.job_name);
    OutputFile(tables.path_of("Train/Samples/train_loss"),
               OutputFile::Open::append);  // reports a wrong folder
    sinks.push_back(std::make_unique<Curves<CsvMonitor>>("csv_monitor", std::move(tables)));
  }
  return sinks;
}

}  // namespace cleave::monitor
