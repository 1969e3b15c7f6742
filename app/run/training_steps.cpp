#include "app/run/training_steps.h"

#include <chrono>

namespace cleave::app {

void TrainingSteps::take() {
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  auto said = begin;
  const int64_t index = run_.engine.step();
  run_.profile.begin_step(run_.engine);
  const BatchSource source(
      [&](int micro) {
        // A step of a large model may take minutes; a line shows that it is running.
        if (const auto now = Clock::now(); now - said > std::chrono::seconds(10)) {
          said = now;
          run_.watch.report().line(fmt::format("step {}: micro-batch {} of {} starts, {:.0f} s so far",
                                               index + 1, micro + 1,
                                               run_.engine.config().gradient_accumulation_steps,
                                               std::chrono::duration<double>(now - begin).count()));
        }
        return run_.profile.timed(monitor::Phase::data, [&] { return run_.batches.next(index, micro); });
      },
      run_.batches.valid_targets(index));
  const comm::CommBytes before = run_.engine.comm_bytes();
  const runtime::StepResult r = train_or_save(source);
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  const comm::CommBytes sent = run_.engine.comm_bytes() - before;
  run_.watch.report().step(run_.engine, r, {seconds, sent, run_.profile.end_step(run_.engine, seconds)});
}

runtime::StepResult TrainingSteps::train_or_save(const BatchSource& data) {
  try {
    return run_.engine.train_batch(data);
  } catch (const Error& e) {
    const int64_t at = run_.engine.step();
    const std::string before = saving_.said(fmt::format("the state before step {}", at + 1));
    if (e.exit() == Exit::data) {
      saving_.rescue(before);
      fail(Exit::data, "{}; {}", e.what(),
           run_.data.samples_of(run_.batches, at, run_.engine.config().train_batch_size));
    }
    if (e.exit() != Exit::training) throw;
    if (!run_.engine.state_is_whole()) {
      run_.watch.say(
          "nothing is saved: the step failed after it began to update the weights; set gradient_clipping to "
          "save the state before a failed step");
      throw;
    }
    saving_.rescue(before);
    throw;
  }
}

}  // namespace cleave::app
