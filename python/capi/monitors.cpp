// Monitors of an engine, and its lines about steps.
#include "monitor/monitors.h"

#include "plan/machine_memory.h"
#include "python/capi/call.h"
#include "python/capi/engine.h"

using namespace cleave;
using capi::call, capi::given, capi::handed_over;

int cleave_report_step(cleave_engine* engine, const cleave_step_result* result, int64_t samples,
                       char** line) {
  return call([&] {
    cleave_engine& e = given(engine, "engine");
    const cleave_step_result& r = given(result, "result");
    char*& out = given(line, "line");
    const config::DsConfig& config = e.base().config();
    const bool due = config.steps_per_print > 0 && r.step % config.steps_per_print == 0;
    const monitor::StepMetrics m{.step = r.step,
                                 .loss = r.loss,
                                 .lr = r.lr,
                                 .grad_norm = r.grad_norm,
                                 .loss_scale = r.loss_scale,
                                 .skipped = r.skipped != 0,
                                 .skipped_total = r.skipped_total};
    if (e.monitors) e.monitors->write(monitor::scalars_of(m), samples);
    std::string text = e.monitors && due ? monitor::line_of(m) : "";
    if (e.monitors && config.memory_breakdown && (due || !e.reported))
      text += (text.empty() ? "" : "\n") + plan::memory_use_of(e.base());
    e.reported = true;
    out = handed_over(text);
  });
}

int cleave_write_scalar(cleave_engine* engine, const char* tag, double value, int64_t samples) {
  return call([&] {
    cleave_engine& e = given(engine, "engine");
    const monitor::Scalar scalar{&given(tag, "tag"), value};
    if (e.monitors) e.monitors->write({&scalar, 1}, samples);
  });
}

int cleave_has_monitors(cleave_engine* engine, int32_t* has) {
  return call([&] {
    const cleave_engine& e = given(engine, "engine");
    given(has, "has") = e.monitors && e.monitors->any();
  });
}
