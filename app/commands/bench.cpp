#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <iterator>

#include "app/commands.h"
#include "app/parse.h"
#include "app/work_progress.h"
#include "core/cores.h"
#include "core/error.h"
#include "core/proc_value.h"
#include "core/version.h"
#include "device/team.h"
#include "kernels/matmul_ways.h"
#include "plan/bench/bench_report.h"
#include "plan/bench/kernel_rows.h"
#include "plan/bench/limits.h"
#include "plan/bench/machine_rows.h"
#include "plan/bench/rounds.h"

namespace cleave::app {
namespace {

using bench::KernelRow;
using bench::Subject;

const std::vector<std::string> kGroups = {"matmul", "kernels", "optimizer", "comm", "disk", "step"};
constexpr int64_t kMillions = 32;  // parameters that the optimizers update

struct BenchOptions {
  std::vector<std::string> groups;
  std::vector<std::string> filter;
  std::string compare, folder = ".";
  int64_t threads = 0, ranks = 2, rounds = 3;
  double seconds = 0.1;
  bool json = false;

  bool has(std::string_view group) const { return groups.empty() || std::ranges::count(groups, group) > 0; }
  bool wants(std::string_view kernel) const {
    return filter.empty() || std::ranges::any_of(filter, [&](const std::string& word) {
             return kernel.find(word) != std::string_view::npos;
           });
  }
};

bool parse_options(BenchOptions& o, const Arguments& arguments) {
  CLI::App app(
      fmt::format(
          "Measures this machine against its limits: {}; without groups, all of them.\nArithmetic limits are "
          "loops of multiply-adds on registers, memory limits are plain loops over large arrays.\nExample: "
          "cleave bench --json > before.json, and later cleave bench --compare before.json",
          fmt::join(kGroups, ", ")),
      "bench");
  app.add_option("group", o.groups, "groups to measure")->check(one_of(kGroups));
  app.add_flag("--json", o.json, "print one JSON object on stdout, and the table on stderr");
  app.add_option("--compare", o.compare,
                 "list the rows that are slower than in this file of an earlier --json");
  app.add_option("--filter", o.filter, "measure only kernels with this word in their names; may be repeated")
      ->allow_extra_args(false);
  app.add_option("--folder", o.folder, "folder of the disk to measure, with a file of 1 GiB")
      ->capture_default_str();
  app.add_option("--ranks", o.ranks, "number of processes for comm")
      ->capture_default_str()
      ->check(integer(2, 256));
  app.add_option("--threads", o.threads, "threads of this process; 0: one per core, or OMP_NUM_THREADS")
      ->capture_default_str()
      ->check(integer(0, kMostThreads));
  app.add_option("--rounds", o.rounds, "rounds over all rows; each row reports its median round")
      ->capture_default_str()
      ->check(integer(1, 1000));
  app.add_option("--seconds", o.seconds, "seconds per kernel, over all rounds")
      ->capture_default_str()
      ->check(number(0));
  return parse(app, arguments);
}

// Returns the subjects in the order of the table. Processes of ranks start before there are
// threads.
std::vector<Subject> subjects_of(const BenchOptions& o, int threads) {
  std::vector<Subject> all;
  const auto add = [&](std::vector<Subject> more) { std::ranges::move(more, std::back_inserter(all)); };
  if (o.has("comm")) add(bench::comm_rows(int(o.ranks)));
  set_team_threads(threads);
  if (o.has("disk")) add(bench::disk_rows(o.folder));
  if (o.has("matmul") || o.has("kernels") || o.has("optimizer") || o.has("step")) add(bench::limit_rows());
  const auto add_kernels = [&](const char* group, const std::vector<KernelRow>& kernels) {
    for (const KernelRow& kernel : kernels)
      if (o.has(group) && o.wants(kernel.name)) add(bench::subjects_of(kernel, o.seconds / double(o.rounds)));
  };
  add_kernels("matmul", bench::product_rows(Device{}));
  add_kernels("kernels", bench::layer_rows(Device{}));
  add_kernels("optimizer", bench::update_rows(Device{}, kMillions));
  if (o.has("step"))
    for (const DType type : {DType::fp32, DType::bf16}) add({bench::step_row(type)});
  return all;
}

std::vector<bench::Row> measure(const std::vector<Subject>& subjects, int rounds) {
  WorkProgress progress(true);
  return bench::measure(subjects, rounds, [&](int round, size_t subject) {
    const double done = double(size_t(round) * subjects.size() + subject);
    progress.at(done / double(size_t(rounds) * subjects.size()), [&](double) {
      return fmt::format("round {} of {}, row {} of {}: {}", round + 1, rounds, subject + 1, subjects.size(),
                         subjects[subject].name);
    });
  });
}

}  // namespace

int run_bench(const Arguments& arguments) {
  BenchOptions o;
  if (!parse_options(o, arguments)) return 0;
  const auto was = o.compare.empty() ? std::nullopt : std::optional(bench::read_report(o.compare));
  bench::Report report{.version = std::string(build::version),
                       .cpu = proc_value("/proc/cpuinfo", "model name"),
                       .instructions = kernels::describe_matmul_ways(),
                       .threads = threads_of_process(int(o.threads)).threads,
                       .rows = {}};
  FILE* const out = o.json ? stderr : stdout;
  std::fprintf(out, "%s, %d threads; %s\n", report.cpu.c_str(), report.threads, report.instructions.c_str());
  if (o.has("matmul")) std::fputs(bench::missing_rows().c_str(), out);
  std::fflush(out);
  report.rows = measure(subjects_of(o, report.threads), int(o.rounds));
  std::fprintf(out, "%s\n", bench::format_head().c_str());
  for (const bench::Row& row : report.rows) std::fprintf(out, "%s\n", bench::format(row).c_str());
  if (o.json) std::printf("%s\n", bench::to_json(report).c_str());
  if (was) std::fprintf(out, "%s\n", bench::format_comparison(*was, report).c_str());
  return 0;
}

}  // namespace cleave::app
