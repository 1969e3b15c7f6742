#include <algorithm>
#include <cstdio>

#include "app/commands.h"
#include "app/commands/checkpoint_options.h"
#include "app/parse.h"
#include "app/work_progress.h"
#include "core/error.h"
#include "core/printable.h"
#include "core/units.h"

namespace cleave::app {
namespace {

// Prints every fault of the checkpoint as a line. Error(checkpoint) if there are faults.
void verify(const checkpoint::CheckpointReader& reader, const CheckpointOptions& o) {
  std::vector<std::string> faults;
  {
    WorkProgress progress(!o.quiet);
    faults = reader.faults(threads_of(o), [&](int64_t done, int64_t all) {
      progress.at(double(done) / double(std::max<int64_t>(all, 1)), [&](double) {
        return fmt::format("verified {} of {}", format_bytes(done), format_bytes(all));
      });
    });
  }
  for (const std::string& fault : faults) std::printf("%s\n", printable(fault).c_str());
  require(faults.empty(), Exit::checkpoint, "{} has {} fault{}", reader.path().string(), faults.size(),
          faults.size() == 1 ? "" : "s");
  std::printf("%s is complete: %zu tensors, every element once, %s, all checksums match\n",
              reader.path().c_str(), reader.manifest().tensors.size(),
              format_bytes(reader.manifest().bytes()).c_str());
}

void verify_all(const CheckpointOptions& o) {
  const std::vector<std::string> names = checkpoint::checkpoint_folders(o.dir);
  require(!names.empty(), Exit::checkpoint, "{}: contains no checkpoints", o.dir);
  size_t faulty = 0;
  for (const std::string& name : names) try {
      verify(checkpoint::CheckpointReader(o.dir, name), o);
    } catch (const Error& e) {
      if (e.exit() != Exit::checkpoint) throw;
      std::printf("%s\n", printable(e.what()).c_str());
      ++faulty;
    }
  require(faulty == 0, Exit::checkpoint, "{} of the {} checkpoints in {} have faults", faulty, names.size(),
          o.dir);
}

}  // namespace

int run_verify(const Arguments& arguments) {
  CLI::App app(
      "Compares every byte of a checkpoint with its checksum, and prints one line per fault. Exit code 4: at "
      "least one fault.\nExample: cleave verify runs/quickstart/checkpoints",
      "verify");
  CheckpointOptions o;
  bool all = false;
  add_options(app, o);
  add_threads(app, o);
  app.add_flag("--all", all, "verify all checkpoints of the folder, damaged ones included")
      ->excludes("--tag");
  if (!parse(app, arguments)) return 0;
  if (all)
    verify_all(o);
  else
    verify(open(o), o);
  return 0;
}

}  // namespace cleave::app
