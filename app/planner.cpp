#include "app/planner.h"

#include "core/error.h"
#include "plan/fit_layers.h"

namespace cleave::app {

Planner::Planner(model::ModelConfig shape, const ModelOptions& model, int world, config::ReadOptions options,
                 const Devices& devices)
    : shape_(std::move(shape)),
      model_(model),
      world_(world),
      options_(std::move(options)),
      devices_(devices) {}

plan::EngineMaker Planner::maker(const config::DsConfig& config) const {
  return [this, &config](comm::Communicator& ranks, runtime::EngineOptions options) {
    options.device = devices_.device;
    const runtime::ModelFactory cut = [&](const model::Axes& axes) {
      return model::make_model(shape_, runtime::model_dtype(config), model_.seq_len, model_.model, axes);
    };
    return std::make_unique<runtime::Engine>(config, cut, ranks, options);
  };
}

void Planner::fit(config::DsConfig& config) const {
  plan::fit_layers(
      config, world_, [this](const config::DsConfig& c) { return maker(c); }, devices_.limits);
}

plan::Candidate Planner::plan(const std::string& text, config::DsConfig config) const {
  return plan(text, std::move(config), {.ranks_per_node = devices_.per_node});
}

plan::Candidate Planner::plan(const std::string& text, config::DsConfig config,
                              const plan::PlanOptions& how) const {
  fit(config);
  plan::JobPlan job = plan::plan_job(config, world_, maker(config), how);
  return {.text = text, .config = std::move(config), .plan = std::move(job), .change = {}};
}

plan::TryConfig Planner::candidates() const {
  return [this](const std::string& text, bool every_rank) -> std::optional<plan::Candidate> {
    const config::ReadResult read = config::read_ds_config(text, "changed ds_config", options_);
    if (!read.ok()) return std::nullopt;
    try {
      return plan(text, read.config,
                  {.ranks = every_rank ? plan::PlanRanks::all : plan::PlanRanks::of_stages,
                   .ranks_per_node = devices_.per_node,
                   .until = devices_.limits});
    } catch (const Error& e) {
      if (e.exit() == Exit::usage) return std::nullopt;  // the ranks do not support this layout
      throw;
    }
  };
}

void Planner::require_fit(const plan::Candidate& candidate, const MemoryLimits& limits,
                          bool with_table) const {
  try {
    candidate.plan.check_fits(limits, with_table);
  } catch (const Error& e) {
    if (e.exit() != Exit::memory) throw;
    fail(Exit::memory, "{}\n{}", e.what(),
         plan::format_changes(candidate, plan::changes_that_fit(candidate, limits, candidates())));
  }
}

}  // namespace cleave::app
