// What a training run tells programs: one JSON object a line. The first line is the start, then one line a
// step and an evaluation, the last the end; lines that are no step have a field "event". Scripts read these
// fields by name.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "monitor/output_file.h"

namespace cleave::monitor {

// One optimizer step, also one that was skipped.
struct StepMetrics {
  int64_t step = 0;  // 1-based
  double epoch = 0;  // how often the data were gone through after this step, a fraction inside of one
  double loss = 0, lr = 0, grad_norm = 0, loss_scale = 1;
  bool skipped = false;
  int64_t skipped_total = 0;
  int64_t tokens = 0;  // of this step, over all ranks
  double tokens_per_s = 0, step_ms = 0;
  double mfu = 0;                               // of the machine's peak, 0 to 1
  std::map<std::string, int64_t> comm_bytes{};  // by collective, sent by this rank in this step
  std::map<std::string, double> times_ms{};     // by phase, where they are measured
};

// The line of one step, without its end: numbers with %.9g, which a float survives; "nan", "inf" and "-inf"
// as strings, because JSON has no such numbers.
std::string to_json(const StepMetrics& metrics);

// One evaluation of one of the data sets that a run is evaluated on.
struct EvaluationMetrics {
  int64_t step = 0;  // after which
  double epoch = 0;
  std::string data = {};  // the set's name, where it has one
  double loss = 0;
  // The share of the targets that were hit, 0 to 1; none where nobody counted. In metrics under the name
  // "accuracy", whatever has the labels; of tokens it is what people call token accuracy.
  std::optional<double> accuracy = {};
  double perplexity() const;
};

class MetricsFile {
 public:
  // append: a resumed run adds to what is there; a last line that a kill left unfinished is taken away. Steps
  // that are trained again appear again: the later line counts. Throws Error(usage) when the file cannot be
  // opened.
  explicit MetricsFile(const std::string& path, bool append = false);

  // `fields` is the text of a JSON object; the line is {"event": "start", ...its members in their order}.
  void start(std::string_view fields);
  void step(const StepMetrics& metrics);
  // {"event": "evaluation", "step": 20, "epoch": 0.5, "data": "books", "validation_loss": 1.5,
  // "perplexity": 4.48, "accuracy": 0.625}, after the steps that it evaluates; without "data" where the set
  // has no name, and without "accuracy" where there is none.
  void evaluation(const EvaluationMetrics& metrics);
  // {"event": "choices", "choices": {name: what was chosen, ...}}, which choices_in finds again.
  void choices(const std::map<std::string, std::string>& made);
  void end(std::string_view fields);

 private:
  void event(std::string_view name, std::string_view fields);

  OutputFile file_;
};

// All choices in a metrics file, the later of equal names. Error(usage) when it cannot be read, or has none.
std::map<std::string, std::string> choices_in(const std::string& path);

// What monitors draw of a step, under DeepSpeed's names: "Train/Samples/lr" and so on.
struct Scalar {
  std::string tag;
  double value = 0;
};
std::vector<Scalar> scalars_of(const StepMetrics& metrics);
// "Train/Samples/eval_loss" and "Train/Samples/eval_accuracy"; with "_" and the set's name where it has one.
std::vector<Scalar> scalars_of(const EvaluationMetrics& metrics);

}  // namespace cleave::monitor
