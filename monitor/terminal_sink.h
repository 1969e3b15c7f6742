// The terminal of cleave train: a progress bar, and lines above it.
#pragma once
#include <cstdio>
#include <optional>

#include "monitor/line_sink.h"
#include "monitor/progress.h"

namespace cleave::monitor {

struct TerminalOptions {
  std::FILE* out = stdout;
  int64_t steps_per_print = 0;
  bool is_terminal = false;
  int columns = 80;
};

class TerminalSink final : public LineSink {
 public:
  using LineSink::take;
  explicit TerminalSink(const TerminalOptions& options)
      : LineSink(options.steps_per_print), options_(options) {}
  std::string name() const override { return "terminal"; }
  void take(const Started& e) override;
  void take(const Stepped& e) override;
  void take(const Ended&) override;

 private:
  void print(const std::string& text) override;

  TerminalOptions options_;
  std::optional<Progress> progress_;
  double now_ = 0;  // of the last event: events wait for this sink
};

}  // namespace cleave::monitor
