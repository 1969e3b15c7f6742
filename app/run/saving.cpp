#include "app/run/saving.h"

#include "app/published_model.h"
#include "app/run/data_position.h"
#include "app/run/resume_check.h"
#include "checkpoint/checkpoint.h"

namespace cleave::app {

nlohmann::json Saving::facts() const {
  nlohmann::json facts = run_.facts;
  facts["position"] = position_facts(run_);
  if (run_.wanted.judges()) facts["best"] = run_.best.json();
  return facts;
}

void Saving::save() {
  run_.profile.timed(monitor::Phase::checkpoint, [&] {
    nlohmann::json facts = this->facts();
    if (run_.wanted.resume_check == "on" && run_.folder.would_save(run_.engine))
      if (const auto first = FirstLoss::of_next_step(run_.engine, run_.batches, run_.job))
        facts["first_loss"] = first->json();
    run_.folder.save(run_.engine, facts);
  });
  saved_ = Clock::now();
}

void Saving::rescue(const std::string& what) {
  run_.watch.say(what);
  run_.profile.timed(monitor::Phase::checkpoint, [&] { run_.folder.save(run_.engine, facts()); });
  finish();
}

bool Saving::due() {
  const auto minutes = std::chrono::duration<double, std::ratio<60>>(Clock::now() - saved_).count();
  return run_.folder.asked_to_save() || (run_.wanted.save_minutes > 0 && minutes >= run_.wanted.save_minutes);
}

void Saving::write_export() {
  const RunOptions& o = run_.wanted;
  const config::DsConfig& config = run_.engine.config();
  if (o.export_to.empty() && !config.zero.stage3_gather_16bit_weights_on_model_save) return;
  if (o.output.empty())
    return run_.watch.say("stage3_gather_16bit_weights_on_model_save: nothing is written without --output");
  const std::string target = o.export_to.empty() ? o.output + "/hugging_face" : o.export_to;
  run_.job.together([&] {
    if (!run_.job.first()) return;
    const bool best = run_.best.step() >= 0 && o.keep_best;
    run_.watch.say(export_checkpoint(o.output,
                                     checkpoint::latest_checkpoint(o.output, best ? "best" : "latest"),
                                     target, {.dtype = runtime::model_dtype(config)},
                                     o.export_to.empty() ? Replaces::earlier : Replaces::nothing));
  });
}

std::string Saving::said(const std::string& what) const {
  return run_.wanted.output.empty() ? "nothing is saved without --output" : "saving " + what;
}

}  // namespace cleave::app
