#include "app/run/training_steps.h"

#include <chrono>
#include <optional>
#include <utility>

#include "app/run/roll_back.h"
#include "plan/machine_memory.h"

namespace cleave::app {

bool TrainingSteps::take() {
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  auto said = begin;
  const int64_t index = run_.engine.step();
  std::optional<monitor::ProfiledEngine> profiled;
  if (run_.profile.profiles(index))
    profiled = {run_.engine.layer_costs(), run_.engine.mesh(), run_.engine.params()};
  run_.profile.begin_step(index, std::move(profiled));
  const std::vector<Batch> batches =
      run_.profile.timed(monitor::Phase::data, [&] { return run_.batches.step(index); });
  // A step of a large model may take minutes; a line shows that it is running.
  const auto begins = [&](int micro) {
    const auto now = Clock::now();
    if (now - said <= std::chrono::seconds(10)) return;
    said = now;
    run_.watch.report().line(fmt::format("step {}: micro-batch {} of {} starts, {:.0f} s so far", index + 1,
                                         micro + 1, batches.size(),
                                         std::chrono::duration<double>(now - begin).count()));
  };
  if (run_.copies) run_.engine.describe_copies(saving_.entry().dump());
  const comm::CommBytes before = run_.engine.comm_bytes();
  const runtime::StepResult r = train_or_save(batches, begins);
  if (!r.bad.empty() && rolls_back(run_.engine.config())) {
    roll_back(run_, r);
    return false;
  }
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  const comm::CommBytes sent = run_.engine.comm_bytes() - before;
  const auto memory = [&] {
    run_.watch.report().memory(run_.engine);
    return plan::memory_use_of(run_.engine);
  };
  std::map<std::string, double> times = run_.profile.end_step({r.step, seconds, memory});
  run_.watch.report().step(run_.engine, r,
                           {seconds, sent, std::move(times), run_.profile.take_collectives()});
  run_.watch.settle();
  if (run_.copies) offer_copies(r.step);
  return true;
}

void TrainingSteps::offer_copies(int64_t step) {
  launcher::Board& board = *run_.job.board();
  if (std::exchange(run_.replaced, false) && run_.job.first()) {
    const launcher::Loss loss = board.take_loss();
    run_.watch.say(
        fmt::format("{}; it was replaced, and step {} was repeated and ended {:.1f} s after the loss",
                    loss.cause, step, double(launcher::Board::now() - loss.when) / 1e9));
  }
  if (run_.copies->newest() >= 0) board.offer(run_.copies->memory());
}

runtime::StepResult TrainingSteps::train_or_save(std::span<const Batch> batches,
                                                 const std::function<void(int)>& begins) {
  try {
    if (run_.recorder) run_.recorder->begin_step();
    StepRecorder* const recorded =
        run_.step_recorder && run_.step_recorder->records(run_.engine.step()) ? run_.step_recorder : nullptr;
    if (recorded) saving_.finish(), recorded->begin(run_.engine, batches);
    const runtime::StepResult result = run_.engine.train_batch(batches, begins);
    if (recorded) recorded->end(run_.engine, result);
    if (run_.recorder) run_.recorder->end_step(result);
    return result;
  } catch (const Error& e) {
    const int64_t at = run_.engine.step();
    const std::string before = saving_.said(fmt::format("the state before step {}", at + 1));
    if (e.exit() == Exit::data) {
      saving_.rescue(before);
      fail(Exit::data, "{}; its samples, counted from 0, are {}", e.what(),
           run_.data.samples_of(run_.batches, at, {0, run_.engine.config().train_batch_size}));
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
