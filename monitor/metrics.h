// Machine-readable metrics of a training run: one JSON object per line. The first line is the start, followed
// by one line per step and evaluation, and the end. Lines other than steps have a field "event". Scripts read
// these fields by name.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "monitor/output_file.h"

namespace cleave::monitor {

// One optimizer step, including skipped steps.
struct StepMetrics {
  int64_t step = 0;  // 1-based
  double epoch = 0;  // number of epochs after this step, with a fraction
  double loss = 0, lr = 0, grad_norm = 0, loss_scale = 1;
  bool skipped = false;
  int64_t skipped_total = 0;
  int64_t tokens = 0;  // of this step, over all ranks; 0: unknown, as tokens_per_s
  double tokens_per_s = 0, step_ms = 0;
  double mfu = 0;                               // fraction of the machine's peak, 0 to 1
  std::map<std::string, int64_t> comm_bytes{};  // by collective, sent by this rank in this step
  std::map<std::string, double> times_ms{};     // by phase, if measured
};

// "step=10, skipped=0, lr=[0.001], loss=2.5": the line of every steps_per_print-th step.
std::string line_of(const StepMetrics& metrics);

// The line of one step, without newline: numbers as %.9g, which is exact for a float; "nan", "inf" and "-inf"
// as strings, because JSON has no such numbers.
std::string to_json(const StepMetrics& metrics);

// One evaluation on one data set.
struct EvaluationMetrics {
  int64_t step = 0;  // evaluated after this step
  double epoch = 0;
  std::string data = {};  // name of the set, if any
  double loss = 0;
  // Fraction of correctly predicted targets, 0 to 1; empty if not counted. Named "accuracy" in metrics for
  // all kinds of labels; for tokens it is the usual token accuracy.
  std::optional<double> accuracy = {};
  double perplexity() const;
};

// One saved or loaded checkpoint.
struct CheckpointMetrics {
  std::string kind, path;  // kind: save or load
  int64_t step = 0, bytes = 0;
  double seconds = 0;
};

// Makes the lines of the events of a run.
class MetricsLines {
 public:
  virtual ~MetricsLines() = default;
  // `fields` is the text of a JSON object; the line is {"event": "start", ...its members in order}.
  void start(std::string_view fields);
  void step(const StepMetrics& metrics);
  // {"event": "evaluation", "step": 20, "epoch": 0.5, "data": "books", "validation_loss": 1.5, "perplexity":
  // 4.48, "accuracy": 0.625}, after the evaluated steps; without "data" if the set has no name, and without
  // "accuracy" if it was not counted.
  void evaluation(const EvaluationMetrics& metrics);
  // {"event": "checkpoint", "kind": "save", "path": "runs/a/global_step20", "step": 20, "bytes": 4096,
  // "seconds": 0.25}
  void checkpoint(const CheckpointMetrics& metrics);
  // {"event": "warning", "text": "..."}: without the prefix "warning: ".
  void warning(const std::string& text);
  // {"event": "choices", "choices": {name: choice, ...}}, for choices_in().
  void choices(const std::map<std::string, std::string>& made);
  void end(std::string_view fields);

 private:
  virtual void write(const std::string& line) = 0;  // with a newline
  void event(std::string_view name, std::string_view fields);
};

class MetricsFile final : public MetricsLines {
 public:
  // append: a resumed run adds to an existing file, and removes an incomplete last line of a killed run.
  // Repeated steps appear again; the later line counts. Throws Error(usage) if the file cannot be opened.
  explicit MetricsFile(const std::string& path, bool append = false);

 private:
  void write(const std::string& line) override { file_.write(line); }
  OutputFile file_;
};

// All choices of a metrics file; later ones override equal names. Throws Error(usage) if the file cannot be
// read or has none.
std::map<std::string, std::string> choices_in(const std::string& path);

// Scalars of a step for monitors, under DeepSpeed's names: "Train/Samples/lr" etc.
struct Scalar {
  std::string tag;
  double value = 0;
};
std::vector<Scalar> scalars_of(const StepMetrics& metrics);
// "Train/Samples/eval_loss" and "Train/Samples/eval_accuracy", followed by "_" and the set's name, if any.
std::vector<Scalar> scalars_of(const EvaluationMetrics& metrics);

}  // namespace cleave::monitor
