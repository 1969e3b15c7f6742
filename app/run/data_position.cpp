#include "app/run/data_position.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "app/run/epochs.h"
#include "app/run/resume_check.h"
#include "core/json.h"
#include "data/sampler.h"

namespace cleave::app {
namespace {

using nlohmann::json;

// Returns the samples per step of the run that saved these facts.
std::optional<int64_t> batch_of(const json& saved) {
  if (!saved.is_object()) return {};
  if (const json batch = saved.value("batch", json()); batch.is_number_integer()) return batch.get<int64_t>();
  if (const std::optional<FirstLoss> first = FirstLoss::in(saved)) return first->batch;
  return {};
}

struct Saved {
  data::Position position;
  int64_t trained = 0;              // samples of all steps so far
  int64_t skipped = 0;              // steps whose data were skipped so far
  std::vector<int64_t> skips = {};  // later steps, see data::Sampler
};

std::optional<Saved> position_of(const json& saved, const data::TokenBatches& batches, int64_t step) {
  try {
    const json& j = saved.at("position");
    Saved at{{counted(j.at("epoch")), counted(j.at("sample"))}, counted(j.at("trained"))};
    if (j.contains("skipped")) at.skipped = counted(j["skipped"]);
    if (j.contains("skips"))
      for (const json& skip : j["skips"]) at.skips.push_back(std::max(counted(skip), step + 1));
    return at;
  } catch (const json::exception&) {
  }
  const std::optional<int64_t> batch = batch_of(saved);
  if (!batch || *batch <= 0 || *batch > kMostCounted / std::max<int64_t>(step, 1)) return {};
  return Saved{batches.position(step, *batch), step * *batch};
}

}  // namespace

json position_facts(const RunParts& run) {
  const int64_t step = run.engine.step();
  const data::Position at = run.batches.position(step);
  json facts = {{"epoch", at.epoch},
                {"sample", at.sample},
                {"trained", run.epoch.trained(step, run.engine.config().train_batch_size)}};
  const std::vector<int64_t>& skips = run.batches.skips();
  const auto ahead = std::ranges::upper_bound(skips, step);
  if (const int64_t skipped = run.skipped + (ahead - skips.begin()); skipped > 0) facts["skipped"] = skipped;
  if (ahead != skips.end()) facts["skips"] = std::vector<int64_t>(ahead, skips.end());
  return facts;
}

void continue_data(RunParts& run) {
  const int64_t step = run.engine.step(), batch = run.engine.config().train_batch_size;
  const std::optional<Saved> saved = position_of(run.folder.resumed_facts(), run.batches, step);
  if (!saved) return;
  run.skipped = saved->skipped;
  const bool same_batch = batch_of(run.folder.resumed_facts()).value_or(batch) == batch;
  const auto skip_ahead = [&] {
    // A skipped range is one of whole steps; with another batch size, its data are tried again.
    for (const int64_t skip : saved->skips)
      if (same_batch) run.batches.skip(skip);
  };
  if (saved->trained == step * batch &&
      (saved->skipped > 0 || saved->position == run.batches.position(step))) {
    if (saved->skipped > 0) run.batches.continue_at(step, saved->position);
    return skip_ahead();
  }
  EpochLength& epoch = run.epoch;
  epoch.first_step = step, epoch.trained_before = saved->trained;
  epoch.before = double(saved->position.epoch) + double(saved->position.sample) / double(epoch.steps * batch);
  run.batches.continue_at(step, saved->position), skip_ahead();
  run.watch.report().count_epochs(epoch);
  if (const std::optional<double> wanted = run.wanted.epochs)
    fail(Exit::usage,
         "--epochs: the checkpoint was trained with another number of samples per step, and {:.4g} epochs "
         "are done (got --epochs {:g}, expected --steps); give --steps {} to train {:g} epochs",
         epoch.before, *wanted, step + (*wanted > epoch.before ? steps_of(*wanted - epoch.before, epoch) : 0),
         *wanted);
}

}  // namespace cleave::app
