#include "monitor/terminal_sink.h"

#include <cmath>

#include "core/error.h"

namespace cleave::monitor {

void TerminalSink::take(const Started& e) {
  now_ = e.time;
  progress_.emplace(ProgressOptions{.out = options_.out,
                                    .total = e.steps,
                                    .done = e.step,
                                    .epochs_done = e.epochs,
                                    .steps_per_epoch = e.steps_per_epoch,
                                    .is_terminal = options_.is_terminal,
                                    .columns = options_.columns,
                                    .now = [this] { return now_; }});
}

void TerminalSink::take(const Stepped& e) {
  const StepMetrics& m = e.metrics;
  now_ = e.time;
  if (m.skipped)
    print(std::isfinite(m.loss) && std::isfinite(m.grad_norm)
              ? fmt::format("step {}: loss spike; skipped ({} so far)", m.step, m.skipped_total)
          : std::isfinite(m.loss)
              ? fmt::format("step {}: gradients overflow at loss scale {}; skipped ({} so far)", m.step,
                            m.loss_scale, m.skipped_total)
              : fmt::format("step {}: the loss is not finite; skipped ({} so far)", m.step, m.skipped_total));
  if (progress_) progress_->step(m.step, m.loss, m.tokens);
  LineSink::take(e);
}

void TerminalSink::take(const Ended&) {
  if (progress_) progress_->finish();
}

void TerminalSink::print(const std::string& text) {
  if (progress_) return progress_->line(text);
  std::fprintf(options_.out, "%s\n", text.c_str());
  std::fflush(options_.out);
}

}  // namespace cleave::monitor
