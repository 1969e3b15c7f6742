#include "app/run/train.h"

#include "app/run/epochs.h"
#include "app/run/rank_facts.h"
#include "app/run/run.h"
#include "app/run/train_tokens.h"

namespace cleave::app {
namespace {

// Reads the configuration before the data are known. With --epochs, the data define the number of
// steps, and the configuration is read again.
config::ReadResult read_before_data(const RunOptions& o, const launcher::Job& job,
                                    config::ReadOptions reading) {
  reading.steps_may_be_open = o.epochs.has_value();
  if (!o.epochs) return job.read_config(o.config, reading);
  config::ReadResult quietly = config::read_ds_config_file(o.config, reading);
  return quietly.ok() ? quietly : job.read_config(o.config, reading);
}

}  // namespace

Exit train(RunOptions o, launcher::Job& job) {
  config::AutoValues values = o.values;
  values.hidden_size = config_of(o.model, 256).width;
  if (!o.epochs) values.total_steps = o.steps;
  config::ReadOptions reading = job.read_options(o.strict, values);
  reading.front = config::Front::train;
  config::ReadResult config = read_before_data(o, job, reading);
  comm::Facts facts;
  const auto connect = [&] {
    if (!o.output.empty()) job.record_flights_into(o.output + "/flight");
    if (job.info().world > 1) facts = rank_facts(o);
    job.connect(config.config, facts);
    launcher::Job::catch_signals();
  };
  const bool connected = tokenize_inputs(o, job, connect);
  o.epoch = epoch_length(o, config.config);
  if (o.epochs) {
    o.steps = steps_of(*o.epochs, o.epoch), reading.auto_values.total_steps = o.steps;
    config = job.read_config(o.config, reading);
  }
  Run run(o, job, config, RunData(o));
  run.check_plan(reading);
  if (!connected) connect();
  return run.train(facts);
}

}  // namespace cleave::app
