#include "launcher/serve_node.h"

#include <fmt/format.h>
#include <signal.h>

#include <cstdio>

#include "core/error.h"
#include "launcher/variables.h"

namespace cleave {
namespace {

void say_word(const std::string& text) {
  std::fprintf(stdout, "%c%s\n", kNodeWord, text.c_str());
  std::fflush(stdout);
}

}  // namespace

int serve_node(const NodeStart& node, const StayOptions& stay) {
  signal(SIGPIPE, SIG_IGN);
  LaunchCallbacks callbacks;
  callbacks.output = [](std::string_view line, bool is_error) {
    std::fwrite(line.data(), 1, line.size(), is_error ? stderr : stdout);
    std::fflush(is_error ? stderr : stdout);
  };
  callbacks.ended = [](int rank, int exit, bool killed) {
    say_word(fmt::format("ended {} {} {:d}", rank, exit, killed));
  };
  const LaunchResult result = launch_node(node, stay, callbacks);
  if (result.cause >= 0) say_word(fmt::format("result {} {}", result.cause, result.message));
  return result.exit;
}

int rank_of_mpi(const Environment& env, int world) {
  const Variables v(env);
  constexpr std::pair<const char*, const char*> kNames[] = {{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                                                            {"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"},
                                                            {"PMI_RANK", "PMI_SIZE"},
                                                            {"PMIX_RANK", "PMI_SIZE"},
                                                            {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS"}};
  for (const auto& [rank, size] : kNames) {
    if (!v.has(rank)) continue;
    require(v.number(size, world) == world && v.number(rank) < world, Exit::usage,
            "{}={} and {}={}, but the job has {} ranks", rank, v.text(rank), size, v.text(size), world);
    return v.number(rank);
  }
  fail(Exit::usage, "no variable of MPI or SLURM says which rank this is");
}

}  // namespace cleave
