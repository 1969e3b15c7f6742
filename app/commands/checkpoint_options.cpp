#include "app/commands/checkpoint_options.h"

#include "app/parse.h"
#include "app/published_model.h"
#include "core/cores.h"

namespace cleave::app {

checkpoint::CheckpointReader open(const CheckpointOptions& o) {
  const auto [folder, tag] = named_checkpoint(o.dir, o.tag);
  return {folder, tag};
}

int threads_of(const CheckpointOptions& o) { return threads_of_process(o.threads).threads; }

void add_options(CLI::App& app, CheckpointOptions& o) {
  app.add_option("dir", o.dir, "folder of checkpoints, or one checkpoint")->required();
  app.add_option("--tag", o.tag, "which one")->capture_default_str();
}

void add_threads(CLI::App& app, CheckpointOptions& o) {
  app.add_option("--threads", o.threads, "reader threads (0: one per core)")
      ->capture_default_str()
      ->check(integer(0, kMostThreads));
  app.add_flag("--quiet", o.quiet, "no progress");
}

}  // namespace cleave::app
