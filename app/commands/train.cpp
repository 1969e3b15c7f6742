#include <csignal>
#include <cstdio>

#include "app/commands.h"
#include "app/commands/train_options.h"
#include "app/run/train.h"

namespace cleave::app {

int run_train(const Arguments& arguments) {
  launcher::Job::end_when_asked();
  std::signal(SIGPIPE, SIG_IGN);  // a reader that goes away, as head does, ends no training
  TrainOptions o;
  if (!parse_options(o, arguments)) return 0;
  launcher::Job job(o.run.ranks);
  return job.run([&] {
    if (job.first())
      for (const std::string& note : o.notes) std::fprintf(stderr, "note: %s\n", note.c_str());
    return int(train(o.run, job));
  });
}

}  // namespace cleave::app
