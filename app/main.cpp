#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string_view>

#include "app/commands.h"
#include "core/build.h"
#include "core/error.h"
#include "core/printable.h"

namespace cleave {
namespace {

void print_help() {
  std::printf(
      "cleave %s: trains models too large for one device from a ds_config.json\n\nusage: cleave COMMAND "
      "...\n\n",
      build::version.data());
  for (const Command& c : kCommands) std::printf("  %-10s %s\n", c.name, c.summary);
  std::printf("\nCOMMAND --help shows its options and an example.\n");
}

// "rank 3: " where there are several, so that interleaved messages stay readable; not before a text that
// names a rank itself.
std::string rank_prefix(std::string_view text = {}) {
  if (text.starts_with("rank ")) return "";
  const char* world = std::getenv("WORLD_SIZE");
  const char* rank = std::getenv("RANK");
  return world && rank && std::string_view(world) != "1" ? fmt::format("rank {}: ", rank) : "";
}

int run(const Arguments& all) {
  if (all.empty() || all[0] == "--help" || all[0] == "-h" || all[0] == "help") {
    print_help();
    return all.empty() ? int(Exit::usage) : 0;
  }
  if (all[0] == "--version") {
    std::printf("cleave %s\n", build::version.data());
    return 0;
  }
  for (const Command& c : kCommands)
    if (all[0] == c.name) return c.run({all.begin() + 1, all.end()});
  std::string names;
  for (const Command& c : kCommands) names += fmt::format(" {}", c.name);
  fail(Exit::usage, "'{}' is not a command; there are:{}", all[0], names);
}

}  // namespace
}  // namespace cleave

int main(int argc, char** argv) {
  try {
    return cleave::run({argv + 1, argv + argc});
  } catch (const cleave::Error& e) {
    if (*e.what())  // or another rank says it
      std::fprintf(stderr, "error: %s%s\n", cleave::rank_prefix(e.what()).c_str(),
                   cleave::printable(e.what()).c_str());
    return int(e.exit());
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "error: %sout of host memory\n", cleave::rank_prefix().c_str());
    return int(cleave::Exit::memory);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "error: %s%s\n", cleave::rank_prefix().c_str(), e.what());
    return int(cleave::Exit::internal);
  }
}
