#include "monitor/line_sink.h"

#include "core/error.h"
#include "core/printable.h"

namespace cleave::monitor {

void LineSink::take(const Stepped& e) {
  if (steps_per_print_ > 0 && e.metrics.step % steps_per_print_ == 0) print(line_of(e.metrics));
}

void LineSink::take(const Evaluated& e) {
  const EvaluationMetrics& m = e.metrics;
  print(printable(fmt::format("step {}: validation loss {}{:.6g}, perplexity {:.6g}{}", m.step,
                              m.data.empty() ? "" : "of " + m.data + " ", m.loss, m.perplexity(),
                              m.accuracy ? fmt::format(", token accuracy {:.6g}", *m.accuracy) : "")));
}

}  // namespace cleave::monitor
