#include "core/cores.h"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "core/environment.h"
#include "core/error.h"

namespace cleave {
namespace {

std::vector<int> cores_of(pid_t process) {
  // Larger than the number of cores of any machine.
  constexpr int kMost = 1 << 14;
  std::vector<int> found;
  cpu_set_t* set = CPU_ALLOC(kMost);
  const size_t size = CPU_ALLOC_SIZE(kMost);
  if (set && sched_getaffinity(process, size, set) == 0)
    for (int core = 0; core < kMost; ++core)
      if (CPU_ISSET_S(core, size, set)) found.push_back(core);
  CPU_FREE(set);
  return found;
}

// First two numbers of a file; -1 for "max" and for missing numbers.
struct Pair {
  double first = -1, second = -1;
};
Pair numbers_in(const std::string& path) {
  std::ifstream in(path);
  Pair p;
  std::string word;
  if (in >> word && word != "max") p.first = std::strtod(word.c_str(), nullptr);
  if (in >> word) p.second = std::strtod(word.c_str(), nullptr);
  return p;
}

// Quota of one group folder (version 2: one file, version 1: two files); 0 if it has none.
double quota_of(const std::string& folder) {
  Pair p = numbers_in(folder + "/cpu.max");
  if (p.second <= 0)
    p = {numbers_in(folder + "/cpu.cfs_quota_us").first, numbers_in(folder + "/cpu.cfs_period_us").first};
  return p.first > 0 && p.second > 0 ? p.first / p.second : 0;
}

// Minimum over the group and its parents, up to the mount. A container may report a path that exists on the
// host only; its group is then the mount itself.
double least_quota(const std::string& mount, std::string group) {
  double least = 0;
  for (;;) {
    const double here = quota_of(mount + group);
    if (here > 0 && (least == 0 || here < least)) least = here;
    if (group.empty() || group == "/") return least;
    group.resize(group.rfind('/') == std::string::npos ? 0 : group.rfind('/'));
  }
}

bool lists_cpu(const std::string& controllers) {
  std::istringstream in(controllers);
  for (std::string name; std::getline(in, name, ',');)
    if (name == "cpu") return true;
  return false;
}

std::string counted(int64_t n, const char* what) {
  return fmt::format("{} {}{}", n, what, n == 1 ? "" : "s");
}

}  // namespace

std::vector<int> usable_cores() {
  std::vector<int> found = cores_of(0);
  if (found.empty()) found.push_back(0);
  return found;
}

double cpu_quota(const std::string& proc, const std::string& mount) {
  std::ifstream groups(proc + "/cgroup");
  double least = 0;
  for (std::string line; std::getline(groups, line);) {  // number:controllers:path
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1),
                      path = line.substr(second + 1);
    std::vector<std::string> mounts;
    if (controllers.empty())
      mounts = {mount, mount + "/unified"};
    else if (lists_cpu(controllers))
      mounts = {mount + "/" + controllers, mount + "/cpu"};
    for (const std::string& m : mounts)
      if (const double q = least_quota(m, path); q > 0 && (least == 0 || q < least)) least = q;
  }
  return least;
}

ThreadFacts thread_facts(int local_ranks) {
  const std::vector<int> mine = usable_cores();
  return {.cores = int(mine.size()),
          .quota = cpu_quota(),
          .local_ranks = std::max(1, local_ranks),
          .own_cores = !environment_value("CLEAVE_CORES").empty() || mine != cores_of(getppid())};
}

ThreadCount choose_threads(const ThreadFacts& facts) {
  const bool shared = facts.local_ranks > 1 && !facts.own_cores;
  ThreadCount c{.threads = shared ? std::max(1, facts.cores / facts.local_ranks) : facts.cores,
                .why = counted(facts.cores, "usable core")};
  if (shared) c.why += fmt::format(" for {} ranks", facts.local_ranks);
  if (facts.quota <= 0) return c;
  const int granted = std::max(1, int(std::ceil(facts.quota / facts.local_ranks - 1e-9)));
  if (granted >= c.threads) return c;
  c.threads = granted;
  c.why = fmt::format("the control group grants {:.3g} of {}", facts.quota, counted(facts.cores, "core"));
  if (facts.local_ranks > 1) c.why += fmt::format(" to {} ranks", facts.local_ranks);
  return c;
}

ThreadCount threads_of_process(int asked, int local_ranks) {
  if (asked > 0) return {asked, "--threads"};
  const ThreadCount chosen = choose_threads(thread_facts(local_ranks));
  const char* variable = std::getenv("OMP_NUM_THREADS");
  if (!variable || !*variable) return chosen;
  char* end = nullptr;
  const long threads = std::strtol(variable, &end, 10);  // the first of a list is the top level
  require(end != variable && (*end == 0 || *end == ',') && threads > 0 && threads <= kMostThreads,
          Exit::usage, "OMP_NUM_THREADS: invalid (got '{}', expected 1 to {}); correct it, or unset it",
          variable, kMostThreads);
  return threads == chosen.threads ? chosen : ThreadCount{int(threads), "OMP_NUM_THREADS"};
}

}  // namespace cleave
