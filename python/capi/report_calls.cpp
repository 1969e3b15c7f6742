// Reports of an engine about its steps.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/json.h"
#include "python/capi/call.h"
#include "python/capi/engine.h"

using namespace cleave;
using capi::call, capi::given, capi::handed_over;

namespace {

runtime::StepResult from_c(const cleave_step_result& r) {
  return {.step = r.step,
          .loss = r.loss,
          .grad_norm = r.grad_norm,
          .lr = r.lr,
          .loss_scale = r.loss_scale,
          .skipped = r.skipped != 0,
          .skipped_total = r.skipped_total};
}

}  // namespace

int cleave_report_step(cleave_engine* engine, const cleave_step_result* result, int64_t samples,
                       char** line) {
  return call([&] {
    cleave_engine& e = given(engine, "engine");
    given(line, "line") =
        handed_over(e.reports->end_step(e.base(), from_c(given(result, "result")), samples));
  });
}

int cleave_report_end(cleave_engine* engine, char** text) {
  return call([&] { given(text, "text") = handed_over(given(engine, "engine").reports->end()); });
}

int cleave_collectives(cleave_engine* engine, char** table) {
  return call([&] {
    capi::Reports& reports = *given(engine, "engine").reports;
    reports.read_events();
    given(table, "table") = handed_over(reports.profile() ? reports.profile()->collectives() : "");
  });
}

// Waits for the work so far, so that a timer measures it.
int cleave_time(cleave_engine* engine, const char* timer, int32_t begins) {
  return call(engine, [&](cleave_engine& e) {
    const auto at = std::find(monitor::kTimers.begin(), monitor::kTimers.end(), &given(timer, "timer"));
    CHECK(at != monitor::kTimers.end(), "unknown timer {}", timer);
    e.base().stream().synchronize();
    e.reports->time(monitor::Timer(at - monitor::kTimers.begin()), begins != 0);
  });
}

int cleave_give_profile(cleave_engine* engine, const char* layers) {
  return call([&] {
    cleave_engine& e = given(engine, "engine");
    CHECK(e.reports->profile(), "the configuration enables no profile");
    const auto all = parse_json(&given(layers, "layers"), "the profile of a step", Exit::internal);
    std::vector<monitor::LayerRow> rows;
    for (const auto& row : all.at("rows"))
      rows.push_back({.name = row.at(0),
                      .params = row.at(1),
                      .flops = row.at(2),
                      .forward_ms = row.at(3),
                      .backward_ms = row.at(4)});
    e.reports->profile()->take_layers(std::move(rows), all.at("facts"));
  });
}

int cleave_write_scalar(cleave_engine* engine, const char* tag, double value, int64_t samples) {
  return call([&] { given(engine, "engine").reports->scalar(&given(tag, "tag"), value, samples); });
}

int cleave_take_events(cleave_engine* engine, int32_t wait, char** events) {
  return call([&] {
    given(events, "events") = handed_over(given(engine, "engine").reports->take_events(wait != 0));
  });
}

int cleave_has_monitors(cleave_engine* engine, int32_t* has) {
  return call([&] { given(has, "has") = given(engine, "engine").reports->has_monitors(); });
}
