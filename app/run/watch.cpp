#include "app/run/watch.h"

#include <cstdio>

#include "comm/clock.h"
#include "comm/traced.h"
#include "core/printable.h"
#include "core/warnings.h"
#include "monitor/profile.h"

namespace cleave::app {

void Watch::open_trace() {
  comm::Communicator& all = job_.world();
  if (wanted_.trace.empty()) {
    if (!trace_ && monitor::Profile::wanted(config_.config))
      trace_ = std::make_unique<Trace>(Trace::Keep::none);
  } else {
    // Ranks of one host share a clock.
    const double clock = job_.info().nodes > 1 ? comm::clock_offset(all, Trace::now_us).offset : 0;
    job_.together([&] {
      if (trace_) return;
      trace_ = std::make_unique<Trace>(Trace::file_of(wanted_.trace, all.rank(), all.size()), all.rank(),
                                       wanted_.trace_steps, clock);
    });
  }
  if (trace_) traced_ = comm::traced_communicator(all, *trace_);
}

void Watch::settle() {
  if (!job_.first() || !config_.config.copies_in_memory) return;
  report_->write_out();
  job_.board()->set_reported(report_->reported());
}

void Watch::say(const std::string& text) {
  if (!job_.first()) return;
  if (constexpr std::string_view kWarning = "warning: "; text.starts_with(kWarning))
    print_warning(text.substr(kWarning.size()));
  else if (!report_)
    std::fprintf(stderr, "%s\n", printable(text).c_str());
  else
    report_->line(text);
}

}  // namespace cleave::app
