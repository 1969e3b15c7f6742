#include "monitor/time_columns.h"

namespace cleave::monitor {
namespace {

double at(const MeasuredStep& s, Phase phase) { return s.phases[size_t(phase)]; }
double at(const MeasuredStep& s, Timer timer) { return s.timers[size_t(timer)]; }

struct Column {
  std::string_view name, curve;
  double (*ms)(const MeasuredStep&);
};

template <Phase P>
constexpr Column column_of(std::string_view name) {
  return {name, name, [](const MeasuredStep& s) { return at(s, P); }};
}

// A model that the engine computes has its passes in the trace; those of torch are timed by their caller.
constexpr Column kOfScripts[] = {
    {"fwd", "forward", [](const MeasuredStep& s) { return at(s, Timer::fwd) + at(s, Phase::forward); }},
    {"bwd", "backward", [](const MeasuredStep& s) { return at(s, Timer::bwd) + at(s, Phase::backward); }},
    {"bwd_inner", "backward_inner",
     [](const MeasuredStep& s) { return at(s, Timer::bwd_inner) + at(s, Phase::backward); }},
    {"bwd_allreduce", "backward_allreduce", [](const MeasuredStep& s) { return at(s, Phase::reductions); }},
    {"step", "step", [](const MeasuredStep& s) { return at(s, Timer::step); }},
    column_of<Phase::gathers>("gathers"),
    column_of<Phase::exchanges>("exchanges"),
    column_of<Phase::offload>("offload")};

constexpr Column kOfTrain[] = {{"step", "", [](const MeasuredStep& s) { return s.ms; }},
                               column_of<Phase::data>("data"),
                               column_of<Phase::forward>("forward"),
                               column_of<Phase::backward>("backward"),
                               column_of<Phase::reductions>("reductions"),
                               column_of<Phase::gathers>("gathers"),
                               column_of<Phase::exchanges>("exchanges"),
                               column_of<Phase::update>("update"),
                               column_of<Phase::offload>("offload"),
                               column_of<Phase::checkpoint>("checkpoint")};

std::span<const Column> columns(config::Front front) {
  return front == config::Front::scripts ? std::span<const Column>(kOfScripts)
                                         : std::span<const Column>(kOfTrain);
}

template <class Of>
auto each(config::Front front, const Of& of) {
  std::vector<decltype(of(kOfTrain[0]))> out;
  for (const Column& c : columns(front)) out.push_back(of(c));
  return out;
}

}  // namespace

std::vector<std::string_view> names_of_columns(config::Front front) {
  return each(front, [](const Column& c) { return c.name; });
}

std::vector<std::string_view> curves_of_columns(config::Front front) {
  return each(front, [](const Column& c) { return c.curve; });
}

std::vector<double> columns_of(config::Front front, const MeasuredStep& step) {
  return each(front, [&](const Column& c) { return c.ms(step); });
}

}  // namespace cleave::monitor
