#include "app/commands/checkpoint_options.h"

#include <filesystem>

#include "app/parse.h"
#include "core/cores.h"

namespace cleave::app {

namespace fs = std::filesystem;

checkpoint::CheckpointReader open(const CheckpointOptions& o) {
  fs::path dir = fs::path(o.dir).lexically_normal();
  if (!dir.has_filename()) dir = dir.parent_path();
  std::error_code error;
  if (!o.tag.empty() || !fs::exists(dir / "manifest.json", error))
    return {dir, o.tag.empty() ? "latest" : o.tag};
  return {dir.has_parent_path() ? dir.parent_path() : ".", dir.filename().string()};
}

int threads_of(const CheckpointOptions& o) { return threads_of_process(o.threads).threads; }

void add_options(CLI::App& app, CheckpointOptions& o) {
  app.add_option("dir", o.dir, "folder of checkpoints, or one of them")->required();
  app.add_option("--tag", o.tag, "which one (default: the one that `latest` names)");
}

void add_threads(CLI::App& app, CheckpointOptions& o) {
  app.add_option("--threads", o.threads, "threads that read (0: one a core)")
      ->capture_default_str()
      ->check(integer(0, kMostThreads));
  app.add_flag("--quiet", o.quiet, "no progress");
}

}  // namespace cleave::app
