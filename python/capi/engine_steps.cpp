// Steps of an engine that the caller drives.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "config_schema/read_config.h"
#include "core/json.h"
#include "kernels/elementwise.h"
#include "optim/rate_groups.h"
#include "optim/schedule.h"
#include "python/capi/call.h"
#include "python/capi/engine.h"
#include "zero/gradient_shards.h"

using namespace cleave;
using capi::call, capi::given;

namespace {

runtime::UnitEngine& engine_of(cleave_engine& engine) { return capi::unit_engine(engine).engine; }

void add(Stream& stream, const zero::GradientSlot& slot, Tensor gradient) {
  if (std::exchange(*slot.written, true))
    kernels::launch(kernels::Axpy{.y = slot.tensor, .x = gradient}, stream);
  else
    kernels::launch(kernels::Cast{.y = slot.tensor, .x = gradient}, stream);
}

cleave_step_result in_c(const runtime::StepResult& r) {
  return {.step = r.step,
          .skipped_total = r.skipped_total,
          .loss = r.loss,
          .grad_norm = r.grad_norm,
          .lr = r.lr,
          .loss_scale = r.loss_scale,
          .skipped = r.skipped};
}

std::vector<optim::Rates> from_c(const cleave_rates* rates, int count) {
  std::vector<optim::Rates> out;
  for (int g = 0; rates && g < count; ++g)
    out.push_back({rates[g].lr, rates[g].momentum, rates[g].beta2, rates[g].weight_decay});
  return out;
}

std::vector<std::string> names_of(const char* list) {
  return parse_json(&given(list, "names"), "the names of parameters", Exit::usage)
      .get<std::vector<std::string>>();
}

cleave_rates in_c(const optim::Rates& r) { return {r.lr, r.momentum, r.beta2, r.weight_decay}; }

}  // namespace

int cleave_begin_step(cleave_engine* engine, int32_t micros) {
  return call(engine, [&](cleave_engine& e) {
    monitor::Profile* profile = e.reports->profile();
    const bool profiled = profile && profile->profiles(e.base().step());
    e.reports->begin_step(e.base().step(), profiled ? e.profiled() : std::nullopt);
    e.begin_step(micros);
  });
}

int cleave_wait_with_updates(cleave_engine* engine, int32_t waits) {
  return call(engine, [&](cleave_engine& e) { engine_of(e).wait_with_updates(waits != 0); });
}

int cleave_show_gradients(cleave_engine* engine) {
  return call(engine, [&](cleave_engine& e) { engine_of(e).show_gradients(); });
}

int cleave_shown_gradients(cleave_engine* engine, int32_t unit, void** pointers, int32_t* dtype) {
  return call(engine, [&](cleave_engine& e) {
    const std::vector<Tensor> gradients = engine_of(e).shown_gradients(unit);
    void** to = &given(pointers, "pointers");
    for (const Tensor& gradient : gradients) *to++ = gradient.raw();
    given(dtype, "dtype") = gradients.empty() ? 0 : int32_t(gradients.front().dtype());
  });
}

int cleave_own_gradient(cleave_engine* engine, const char* parameter, float* value) {
  return call(engine, [&](cleave_engine& e) {
    const std::vector<float> whole = engine_of(e).own_gradient(&given(parameter, "parameter"));
    std::copy(whole.begin(), whole.end(), &given(value, "value"));
  });
}

int cleave_discard_gradients(cleave_engine* engine) {
  return call(engine, [&](cleave_engine& e) { engine_of(e).discard_gradients(); });
}

int cleave_pause(cleave_engine* engine, const char* names) {
  return call(engine, [&](cleave_engine& e) { engine_of(e).pause(names_of(names)); });
}

int cleave_offload_states(cleave_engine* engine, int32_t masters, int32_t states, int32_t pinned) {
  return call(engine,
              [&](cleave_engine& e) { engine_of(e).offload_states(masters != 0, states != 0, pinned != 0); });
}

int cleave_reload_states(cleave_engine* engine) {
  return call(engine, [&](cleave_engine& e) { engine_of(e).reload_states(); });
}

int cleave_position(cleave_engine* engine, char** position) {
  return call(engine, [&](cleave_engine& e) {
    given(position, "position") = capi::handed_over(engine_of(e).position());
  });
}

int cleave_set_position(cleave_engine* engine, const char* position, const char* fresh) {
  return call(engine, [&](cleave_engine& e) {
    engine_of(e).set_position(&given(position, "position"), names_of(fresh));
  });
}

int cleave_scale(cleave_engine* engine, double* scale) {
  return call(engine, [&](cleave_engine& e) { given(scale, "scale") = e.scale(); });
}

int cleave_loss_scale(cleave_engine* engine, double* scale) {
  return call(engine, [&](cleave_engine& e) { given(scale, "scale") = e.base().loss_scale(); });
}

int cleave_gathers(cleave_engine* engine, int32_t unit, int32_t* gathers) {
  return call(engine, [&](cleave_engine& e) { given(gathers, "gathers") = e.gathers(unit); });
}

int cleave_begin_pass(cleave_engine* engine, int32_t kind, int32_t last) {
  return call(engine, [&](cleave_engine& e) {
    e.reports->watch();
    e.begin_pass(kind, last != 0);
  });
}

int cleave_end_pass(cleave_engine* engine) {
  return call(engine, [&](cleave_engine& e) {
    e.end_pass();
    e.reports->read_events();
  });
}

int cleave_abandon_pass(cleave_engine* engine) {
  return call(engine, [&](cleave_engine& e) { engine_of(e).abandon_pass(); });
}

int cleave_acquire(cleave_engine* engine, int32_t unit, void** pointers) {
  return call(engine, [&](cleave_engine& e) {
    void** to = &given(pointers, "pointers");
    for (void* parameter : e.acquire(unit)) *to++ = parameter;
  });
}

int cleave_release(cleave_engine* engine, int32_t unit) {
  return call(engine, [&](cleave_engine& e) { e.release(unit); });
}

int cleave_give(cleave_engine* engine, int32_t unit, const void* const* gradients, const int32_t* dtypes) {
  return call(engine, [&](cleave_engine& e) {
    const void* const* data = &given(gradients, "gradients");
    const int32_t* types = &given(dtypes, "dtypes");
    for (const zero::GradientSlot& slot : engine_of(e).gradients(unit)) {
      void* from = const_cast<void*>(*data++);
      const auto type = DType(*types++);
      CHECK(!from || slot.written, "a gradient of the frozen unit {}", unit);
      if (from)
        add(engine_of(e).stream(), slot, Tensor(from, type, {slot.tensor.numel()}, MemoryKind::device));
    }
    engine_of(e).give(unit), engine_of(e).complete(unit);
  });
}

int cleave_finish_step(cleave_engine* engine, const double* losses, int32_t count, const cleave_rates* rates,
                       int32_t groups, cleave_step_result* result) {
  return call(engine, [&](cleave_engine& e) {
    const std::vector<optim::Rates> brought = from_c(rates, groups);
    given(result, "result") = in_c(e.finish_step({losses, size_t(losses ? count : 0)}, brought));
  });
}

int cleave_rate_groups(const cleave_rates* began, const cleave_rates* now, int32_t count, int32_t* numbers,
                       cleave_rates* merged) {
  return call([&] {
    const optim::RateGroups groups(from_c(&given(began, "began"), count));
    std::copy(groups.of_group().begin(), groups.of_group().end(), &given(numbers, "numbers"));
    cleave_rates* to = &given(merged, "merged");
    for (const optim::Rates& r : groups.merged(from_c(&given(now, "now"), count))) *to++ = in_c(r);
  });
}

int cleave_schedule_rates(const char* scheduler, double lr, int64_t updates, cleave_rates* rates) {
  return call([&] {
    const std::string text = fmt::format(
        R"({{"train_batch_size": 1, "optimizer": {{"type": "AdamW", "params": {{"lr": {}}}}}, "scheduler": {}}})",
        lr, &given(scheduler, "scheduler"));
    const config::ReadResult read = config::read_ds_config(text, "the schedule");
    require(read.ok(), Exit::usage, "{}: has errors:\n{}", scheduler, config::format(read.problems));
    given(rates, "rates") = in_c(optim::LrSchedule(read.config.scheduler, lr).at(updates));
  });
}

int cleave_set_next_lr(cleave_engine* engine, double lr) {
  return call(engine, [&](cleave_engine& e) { e.base().set_next_lr(lr); });
}

int cleave_next_rates(cleave_engine* engine, cleave_rates* rates) {
  return call(engine, [&](cleave_engine& e) { given(rates, "rates") = in_c(e.base().next_rates()); });
}
