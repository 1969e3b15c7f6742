// Monitors of an engine, and its lines about steps.
#include "monitor/monitors.h"

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
    const int64_t every = e.base().config().steps_per_print;
    const monitor::StepMetrics m{.step = r.step,
                                 .loss = r.loss,
                                 .lr = r.lr,
                                 .grad_norm = r.grad_norm,
                                 .loss_scale = r.loss_scale,
                                 .skipped = r.skipped != 0,
                                 .skipped_total = r.skipped_total};
    if (e.monitors) e.monitors->write(monitor::scalars_of(m), samples);
    out = handed_over(e.monitors && every > 0 && r.step % every == 0 ? monitor::line_of(m) : "");
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
