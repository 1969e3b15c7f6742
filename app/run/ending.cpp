#include "app/run/ending.h"

namespace cleave::app {

Ending::Ending(RunParts& run, Saving& saving) : run_(run), saving_(saving) {
  if (at_end())
    run_.watch.say(
        fmt::format("already at step {} of {}: nothing to train", run_.engine.step(), run_.wanted.steps));
  run_.job.together([&] { read_ahead(); });
  vote_to_stop();
}

// Waits for the data of the next step; throws their errors.
void Ending::read_ahead() {
  if (at_end()) return;
  run_.data.training().require_unchanged();
  run_.profile.timed(monitor::Phase::data, [&] { run_.batches.prepare(run_.engine.step()); });
}

bool Ending::vote_to_save() {
  std::exception_ptr failure;
  try {
    read_ahead();
  } catch (const Error&) {
    failure = std::current_exception();
  }
  double votes[] = {launcher::Job::stop_requested() ? 1.0 : 0, failure ? 1.0 : 0,
                    run_.job.first() && saving_.due() ? 1.0 : 0, saving_.look() ? 0 : 1.0};
  Stream stream;
  run_.job.world().all_reduce(Tensor(votes, DType::fp64, {4}, MemoryKind::host), stream,
                              {.what = "agreement"});
  if (votes[3] > 0) saving_.finish();
  if (votes[1] > 0) save_and_throw(failure);
  stopped_ = votes[0] > 0;
  return votes[2] > 0;
}

void Ending::save_and_throw(const std::exception_ptr& failure) {
  run_.engine.synchronize();
  saving_.rescue("cannot read data: " + saving_.said(fmt::format("after step {}", run_.engine.step())));
  run_.job.together([&] {
    if (failure) std::rethrow_exception(failure);
  });
  throw Error(Exit::data, "data: another rank cannot read its part; see its error");
}

void Ending::say_early() const {
  const Best& best = run_.best;
  if (best.out_of_patience())
    run_.watch.say(fmt::format("stopped early after step {}: {} evaluations without improvement",
                               run_.engine.step(), best.waited()));
}

}  // namespace cleave::app
